"""The comparison of golden runs reports what differs."""

from tests.golden.__main__ import difference


def test_the_first_field_that_differs_or_is_missing_is_reported_with_both_values() -> None:
    ours = {"result 1/digest": "'ab'", "result 1/loss": "0.5", "weights of main": "12"}
    assert difference(ours, dict(ours)) == ""
    assert difference(ours, {**ours, "result 1/loss": "0.25", "weights of main": "34"}) == (
        "result 1/loss: 0.5 here, 0.25 there"
    )
    assert difference({"loss": "1"}, {"loss": "1", "error": "E"}) == "error: missing here, E there"
    assert difference({"loss": "1", "error": "E"}, {"loss": "1"}) == "error: E here, missing there"
    assert difference({"loss": "1", "result 1/win_share": "0.5"}, {"loss": "1"}) == ""
