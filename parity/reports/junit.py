"""A result as JUnit XML, which CI services read: a test for each tap, and for each bug."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from lockstep.parity.judging.result import Tap
from lockstep.parity.reports.document import Document
from lockstep.parity.reports.summary import Fix, figure, fixes, headline, layer_of, plain, sentence


def junit(document: Document) -> str:
    """Return the XML. Every text is printable already, so no character is one that XML lacks."""
    suites = Element("testsuites", name="lockstep")
    suite = SubElement(suites, "testsuite", name=f"lockstep {document.command}: {document.right}")
    found = fixes(document) if document.command == "explain" else []
    for fix in found:
        bug(suite, fix)
    for tap in document.taps:
        test_of(suite, tap)
    if not len(suite):
        verdict(suite, document)
    count(suite, suites)
    SubElement(suite, "system-out").text = f"{headline(document)}. {sentence(document)}"
    indent(suites)
    body = tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def bug(suite: Element, fix: Fix) -> None:
    case = SubElement(suite, "testcase", classname="lockstep.bugs", name=fix.title)
    where = f" ({fix.where})" if fix.where else ""
    failure = SubElement(case, "failure", type="fault", message=f"{fix.title}{where}: {fix.text}")
    failure.text = "\n".join(f"{label}: {text}" for label, text in fix.why)


def test_of(suite: Element, tap: Tap) -> None:
    layer = layer_of(tap.name)
    place = "lockstep.taps" if layer is None else f"lockstep.layers.{layer}"
    case = SubElement(suite, "testcase", classname=place, name=tap.name)
    if tap.status == "not judged":
        SubElement(case, "skipped", message=tap.place or "not judged")
    elif tap.is_wrong:
        said = tap.place or f"{figure(tap.rms_rel)} off"
        failure = SubElement(case, "failure", type=tap.status, message=said)
        failure.text = "\n".join(
            f"{label}: {text}"
            for label, text in (
                ("accumulated error", figure(tap.rms_rel)),
                ("own error", figure(tap.own_error)),
                ("noise", figure(tap.noise)),
                ("ratio", plain(tap.ratio)),
                ("made by", tap.op or "-"),
            )
        )


def verdict(suite: Element, document: Document) -> None:
    """Add the one test of a result that lists neither taps nor bugs."""
    case = SubElement(suite, "testcase", classname="lockstep", name="verdict")
    if not document.good:
        SubElement(case, "failure", type=document.verdict, message=headline(document))


def count(suite: Element, suites: Element) -> None:
    """Say the sums, which some readers take instead of counting."""
    sums = {"tests": suite.findall("testcase"), "failures": suite.findall("testcase/failure"),
            "skipped": suite.findall("testcase/skipped")}  # fmt: skip
    for element in (suite, suites):
        for name, found in sums.items():
            element.set(name, str(len(found)))
        element.set("errors", "0")
