# SPDX-License-Identifier: Apache-2.0
"""Results of test programs as JUnit XML, for CI servers."""
import re
import xml.etree.ElementTree as ET


def write(path, done):
    """done: (program, outcome) of each run, as run.py has them."""
    root = ET.Element("testsuites")
    for program, outcome in done:
        suite = ET.SubElement(root, "testsuite", name=program.label, time=f"{outcome.seconds:.3f}",
                              tests=str(len(outcome.cases)), failures=str(outcome.count("fail")),
                              skipped=str(outcome.count("skip")))
        for name, verdict, reason in outcome.cases:
            case = ET.SubElement(suite, "testcase", classname=program.label.replace("/", "."), name=printable(name))
            if verdict != "pass":
                tag = {"fail": "failure", "skip": "skipped"}[verdict]
                ET.SubElement(case, tag, message=printable(reason))
        if outcome.count("fail"):
            ET.SubElement(suite, "system-out").text = printable(outcome.output)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def printable(text):
    """XML 1.0 has no place for most control characters."""
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)
