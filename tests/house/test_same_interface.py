"""`reference` defines the interface; the backends have the same names and signatures. By law."""

import importlib
import inspect
import pkgutil
import typing

import pytest

REFERENCE = "lockstep.reference.ops"
BACKENDS = ("lockstep.fast.ops", "lockstep.fast.cpu")
# What only a port has to be told: which backend, on which device, and what it rounds to be quicker.
ONLY_FAST = {"backend", "device", "activations", "progress", "expert_budget"}


def operations(package: str) -> set[str]:
    """Name the operations of a package: its files, apart from private ones."""
    path = importlib.import_module(package).__path__
    return {module.name for module in pkgutil.iter_modules(path) if module.name[0] != "_"}


def parameters(function) -> list[tuple]:
    """Say all that a caller can see of a signature: names, kinds and defaults, in order."""
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


def test_there_are_operations():
    assert len(operations(REFERENCE)) >= 10


@pytest.mark.parametrize("package", [REFERENCE, *BACKENDS])
def test_each_file_is_named_after_the_operation_that_it_defines(package):
    namespace = importlib.import_module(package)
    assert set(namespace.__all__) == operations(package)
    for name in namespace.__all__:
        function = getattr(namespace, name)
        assert (function.__module__, function.__name__) == (f"{package}.{name}", name)


@pytest.mark.parametrize("package", BACKENDS)
def test_backends_have_the_operations_of_the_reference(package):
    assert operations(package) == operations(REFERENCE)


@pytest.mark.parametrize("package", BACKENDS)
@pytest.mark.parametrize("name", sorted(operations(REFERENCE)))
def test_operations_have_one_signature(package, name):
    ours = getattr(importlib.import_module(package), name)
    assert parameters(ours) == parameters(getattr(importlib.import_module(REFERENCE), name))


@pytest.mark.parametrize("name", sorted(operations(REFERENCE)))
def test_what_changes_arithmetic_has_no_default(name):
    for parameter, _, default in parameters(getattr(importlib.import_module(REFERENCE), name)):
        assert default in (inspect.Parameter.empty, None), f"{name}: {parameter}={default!r}"


def test_backends_have_the_models_of_the_reference():
    models = operations("lockstep.reference.models")
    assert models
    assert operations("lockstep.fast.models") == models


def test_load_and_the_model_have_one_signature():
    reference = importlib.import_module("lockstep.reference").load
    fast = importlib.import_module("lockstep.fast").load
    kept = [parameter for parameter in parameters(fast) if parameter[0] not in ONLY_FAST]
    assert kept == parameters(reference)

    models = [typing.get_type_hints(load)["return"] for load in (reference, fast)]
    for method in ("forward", "make_cache", "put"):
        one, other = (parameters(getattr(model, method)) for model in models)
        assert one == other, method


SAMPLING = "lockstep.reference.decoding.sampling"


def functions_of(package: str) -> dict[str, list[tuple]]:
    """Say the parameters of every public function and class that a package's files define."""
    found = {}
    for name in operations(package):
        module = importlib.import_module(f"{package}.{name}")
        for key, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__
            if own and callable(value) and key != "checked":
                found[f"{name}.{key}"] = parameters(value)
    return found


def test_the_sampler_has_one_interface():
    reference = functions_of(SAMPLING)
    assert len(reference) >= 12
    assert functions_of(SAMPLING.replace("reference", "fast")) == reference
    packages = [
        importlib.import_module(SAMPLING.replace("reference", one)) for one in ("reference", "fast")
    ]
    assert packages[0].__all__ == packages[1].__all__


CACHES = "lockstep.reference.caches"


def test_the_caches_have_one_interface():
    """What codecs call in a file of the reference, a backend's file of that name has too."""
    names = operations(CACHES) - {"make"}
    assert names == {"int8", "affine", "turbo"}
    for name in names:
        reference = importlib.import_module(f"{CACHES}.{name}")
        for backend in ("cpu", "mlx"):
            other = importlib.import_module(f"lockstep.fast.caches.{name}_{backend}")
            assert coding(reference) and coding(reference) == coding(other), (name, backend)
    makers = [
        parameters(importlib.import_module(f"lockstep.{package}.caches.make").make_cache)
        for package in ("reference", "fast")
    ]
    assert [one for one in makers[1] if one[0] not in ONLY_FAST] == makers[0]


CODING = {"absmax", "from_absmax", "affine", "coded", "coded_keys", "decoded", "decoded_keys"}


def coding(module) -> dict[str, list[tuple]]:
    """Say the parameters of the functions that codecs call."""
    found = inspect.getmembers(module, inspect.isfunction)
    return {name: parameters(one) for name, one in found if name in CODING}
