"""Renders one chat template and exits. It runs alone, in a child process that may die at any time.

A chat template is a program that came with a model. Jinja's sandbox keeps it from Python's
internals, but not from burning time or memory, so it runs here, under limits that the system
enforces, and in an interpreter that refuses to open anything. The parent starts this file by its
path, isolated from the user's environment and folder; it imports nothing of Lockstep.

Arguments: seconds of CPU, bytes of memory, bytes of output, then the folders that hold Jinja.
Standard input: JSON {"template": text, "variables": object}. Standard output: `ready` and a line
break as soon as the template's clock may start, then `ok` or `no`, a line break, and UTF-8 text.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from datetime import datetime
from typing import Any, NoReturn

MEMORY_EXIT = 3
MESSAGE_CHARS = 1000
# What no template has a use for. `import` of a module from a file shows up as `open`.
FORBIDDEN = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "mmap.", "signal.")


def main(arguments: list[str]) -> None:
    """Answer one request, whatever happens on the way."""
    cpu_seconds, memory_bytes, output_bytes = (int(number) for number in arguments[:3])
    sys.path += arguments[3:]
    environment = make_environment()
    limit_resources(cpu_seconds, memory_bytes)
    sys.addaudithook(refuse_system_calls)
    reply(b"ready\n")
    try:
        request = json.loads(sys.stdin.buffer.read())
        text = environment.from_string(request["template"]).render(**request["variables"])
        answer = b"ok\n" + text.encode()
        if len(answer) > output_bytes:
            answer = b"no\nthe rendered text is over the limit of %d bytes" % output_bytes
    except BaseException as error:
        # RecursionError, MemoryError, IndentationError: a template can cause them all.
        answer = b"no\n" + explain(error).encode(errors="backslashreplace")
    reply(answer)


def make_environment() -> Any:
    """Return Jinja's sandbox with the settings, globals and tags that transformers gives it."""
    import jinja2
    import jinja2.exceptions
    import jinja2.ext
    import jinja2.sandbox

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            # Jinja would go on with an empty value; nobody asks for this by mistake.
            kind = type(obj).__name__
            raise jinja2.exceptions.SecurityError(f"unsafe access to {attribute!r} of {kind}")

    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, generation_tag(jinja2)],
    )
    for name in ("lipsum", "cycler", "joiner"):
        # Conveniences for web pages, and the classic ways out of the sandbox.
        del environment.globals[name]
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raiser(jinja2.TemplateError),
        strftime_now=lambda form: datetime.now().strftime(form),
        dict=DictMaker(),
        namespace=namespace_class(jinja2),
    )
    warm_up(environment)
    return environment


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Stand in for Jinja's own filter, which escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class DictMaker:
    """`dict` for templates: makes dictionaries, and is not the class itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def raiser(error_class: type[Exception]) -> Any:
    def raise_exception(message: object) -> NoReturn:
        raise error_class(message)

    return raise_exception


def namespace_class(jinja2: Any) -> type:
    """Return Jinja's `namespace` without attributes that begin with an underscore."""

    def check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")

    class Namespace(jinja2.utils.Namespace):
        def __init__(*args: Any, **kwargs: Any) -> None:
            # Positional only, so that a template may have an attribute called self.
            attributes = dict(*args[1:], **kwargs)
            for name in attributes:
                check(name)
            jinja2.utils.Namespace.__init__(args[0], attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check(name)
            super().__setitem__(name, value)

    return Namespace


def generation_tag(jinja2: Any) -> type:
    """Return the extension for `{% generation %}`, which marks text and leaves it as it is."""

    class Generation(jinja2.ext.Extension):
        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_body")
            # A call block, as in transformers: what is set inside does not leak out.
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> str:
            return caller()

    return Generation


def warm_up(environment: Any) -> None:
    """Load what Python and Jinja load late, while files can still be opened."""
    import html
    import pprint
    import textwrap

    import jinja2.debug

    loaded = (html, pprint, textwrap, jinja2.debug)
    source = (
        "{{ '\\u00e9\\n' | urlencode }}{% generation %}{% endgeneration %}{{ strftime_now('%c') }}"
    )
    environment.from_string(source).render(loaded=loaded)


def limit_resources(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the limits that the system enforces; not every system has or honours each of them."""
    # A slow start of Python and Jinja is not the template's fault.
    cpu_seconds += int(time.process_time())
    if not sys.platform.startswith("linux"):
        # macOS accepts the limit on memory and ignores it.
        threading.Thread(target=watch_memory, args=(memory_bytes,), daemon=True).start()
    for name, soft, hard in (
        ("RLIMIT_CPU", cpu_seconds, cpu_seconds + 1),
        ("RLIMIT_AS", memory_bytes, memory_bytes),
        ("RLIMIT_FSIZE", 0, 0),
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_NPROC", 0, 0),
    ):
        try:
            resource.setrlimit(getattr(resource, name), (soft, hard))
        except (AttributeError, OSError, ValueError):
            continue


def watch_memory(memory_bytes: int) -> None:
    """Leave at once when the process has grown by more than `memory_bytes`."""
    # Some systems count the peak of the process that started this one, so the start is not zero.
    limit = peak_memory() + memory_bytes
    while peak_memory() <= limit:
        time.sleep(0.01)
    os._exit(MEMORY_EXIT)


def peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def refuse_system_calls(event: str, _arguments: object) -> None:
    if event.startswith(FORBIDDEN):
        raise PermissionError(f"a chat template may not use {event}")


def explain(error: BaseException) -> str:
    """Return one sentence for any way in which a template can fail."""
    kind = type(error).__name__
    if isinstance(error, MemoryError):
        return "it needs too much memory"
    if isinstance(error, RecursionError | IndentationError):
        return "it is nested too deeply"
    try:
        message = str(error)[:MESSAGE_CHARS]
    except Exception:
        message = "(the message cannot be shown)"
    if kind == "TemplateSyntaxError":
        return f"line {getattr(error, 'lineno', '?')}: {message}"
    # TemplateError itself is what raise_exception raises: the author's own words.
    return message if kind == "TemplateError" else f"{kind}: {message}"


def reply(answer: bytes) -> None:
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
