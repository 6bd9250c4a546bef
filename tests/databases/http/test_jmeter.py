"""What JMeter is told and what it says, and the parameters of ``http``: without JMeter."""

from __future__ import annotations

from pathlib import Path

import pytest

from ztune.databases.http.onhost import jmeter
from ztune.databases.http.workload import HttpLoad
from ztune.errors import InputError, ZtuneError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"requests": 3}, "3 requests are too few for 8 threads"),
        ({"security": "ssl"}, "'none' or 'wsse'"),
        ({"user": "a b"}, "'user'"),
        ({"user": "<a>"}, "'user'"),
        ({"port": 70000}, "'port'"),
        ({"document_size": "1"}, "'document_size'"),
    ],
)
def test_parameters_that_make_no_sense(values: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        HttpLoad(values)


def test_a_result_file_is_read_as_it_is(tmp_path: Path) -> None:
    head = "timeStamp,elapsed,responseCode,responseMessage,success,failureMessage,URL\n"
    path = tmp_path / "results.jtl"
    lines = "1000,7,200,OK,true,,http://a\n1002,3,500,No,false,why,http://a\n900,9999,200,,true,,null\n"
    path.write_text(head + lines)
    found = jmeter.read(path)
    assert (found.count, found.failed, found.first_failure) == (2, 1, "500 No why")
    assert found.latencies_ms == (3, 7) and found.seconds == pytest.approx(0.007)
    path.write_text(head.replace(",URL", ""))
    with pytest.raises(ZtuneError, match="has no column URL"):
        jmeter.read(path)
    path.write_text(head + "x,7,200,OK,true,,http://a\n")
    with pytest.raises(ZtuneError, match="is no number"):
        jmeter.read(path)
    with pytest.raises(ZtuneError, match="left no result file: No such file"):
        jmeter.read(tmp_path / "none")


def test_properties_are_read_by_java_as_they_were(tmp_path: Path) -> None:
    value = " a\\b=c:d#e!f ü€😀\t"
    assert f"x={jmeter._escaped(value)}" in jmeter.properties({"x": value})
    assert jmeter._escaped("a b\\ü😀") == "a\\u0020b\\u005c\\u00fc\\ud83d\\ude00"
