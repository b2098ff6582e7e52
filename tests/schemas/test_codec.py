"""Decoding: strict about what it needs, tolerant of what it does not know, never surprised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_alert, decode_sample, decode_window, encode
from schemas.errors import DecodeError
from schemas.metrics import METRICS
from schemas.sample import NodeSample

T0 = 1_790_000_000_000
VALID: dict[str, Any] = {
    "schema": "gpu.sample/1",
    "node": "n",
    "boot_id": "b",
    "seq": 0,
    "ts": [T0],
    "gpu": ["GPU-a", "GPU-b"],
    "m": {"power_watts": [1.0, None]},
    "collector": {"state": "ok"},
}


def body(**changes: Any) -> bytes:
    return orjson.dumps({**VALID, **changes})


def without(name: str) -> bytes:
    return orjson.dumps({key: value for key, value in VALID.items() if key != name})


def test_the_least_message_decodes() -> None:
    decoded = decode_sample(body())
    assert decoded.m == {"power_watts": [1.0, None]}
    assert decoded.jobs is None
    assert decoded.inventory is None


def test_no_jobs_and_unchanged_jobs_are_two_things() -> None:
    assert decode_sample(body(jobs=[])).jobs == ()
    assert decode_sample(body(jobs=None)).jobs is None


def test_numbers_of_the_machine_may_be_there() -> None:
    assert decode_sample(body()).host is None
    assert decode_sample(body(host={"load1": 0.5, "new": 1})).host == {"load1": 0.5, "new": 1}
    with pytest.raises(DecodeError):
        decode_sample(body(host={"load1": "much"}))


def test_a_heartbeat_without_gpus_decodes() -> None:
    beat = decode_sample(body(gpu=[], m={}, collector={"state": "no_driver", "nvml_error": 9}))
    assert beat.gpu == ()
    assert beat.collector.nvml_error == 9


def test_what_is_unknown_is_ignored() -> None:
    decoded = decode_sample(
        body(
            m={"power_watts": [1, 2], "quark_flux_ratio": ["?", {}]},
            future={"a": 1},
            collector={"state": "ok", "mood": "calm", "list": [1]},
            inventory={"gpus": [{"gpu": "GPU-a", "colour": "green"}], "planet": "earth"},
        )
    )
    assert set(decoded.m) == {"power_watts"}
    assert decoded.inventory is not None
    assert decoded.inventory.gpus[0].gpu == "GPU-a"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not_json"),
        (b"junk", "not_json"),
        (b"[1]", "not_object"),
        (body(schema="gpu.sample/2"), "schema"),
        (without("schema"), "schema"),
        (without("node"), "bad_field"),
        (body(node=""), "bad_field"),
        (body(node=7), "bad_field"),
        (without("boot_id"), "bad_field"),
        (body(seq=-1), "bad_field"),
        (body(seq=True), "bad_field"),
        (body(seq=1.5), "bad_field"),
        (body(ts=[]), "bad_field"),
        (body(ts=T0), "bad_field"),
        (body(ts=[T0 / 1000]), "bad_time"),
        (body(ts=[1_790_000_000]), "bad_time"),
        (body(ts=[T0, T0]), "bad_time"),
        (body(ts=[True]), "bad_time"),
        (body(ts=[9_999_999_999_999]), "bad_time"),
        (body(gpu="GPU-a"), "bad_field"),
        (body(gpu=["GPU-a", ""]), "bad_field"),
        (body(gpu=["GPU-a", 5]), "bad_field"),
        (body(gpu=["GPU-a", ["x"]]), "bad_field"),
        (body(gpu=["GPU-a", "GPU-a"]), "duplicate_gpu"),
        (body(m=[]), "bad_field"),
        (body(m={"power_watts": [1.0]}), "bad_length"),
        (body(m={"power_watts": [1.0, 2.0, 3.0]}), "bad_length"),
        (body(m={"power_watts": {"0": 1.0}}), "bad_length"),
        (body(m={"power_watts": [1.0, "2.0"]}), "bad_value"),
        (body(m={"power_watts": [1.0, True]}), "bad_value"),
        (body(m={"power_watts": [1.0, [2.0]]}), "bad_value"),
        (without("collector"), "bad_field"),
        (body(collector={"state": 5}), "bad_field"),
        (body(status=[]), "bad_field"),
        (body(status={"power_watts": "unsupported"}), "bad_field"),
        (body(events=[{"kind": "xid"}]), "missing_field"),
        (body(events=5), "bad_field"),
        (body(jobs=[{"gpus": "GPU-a", "job": "j"}]), "bad_field"),
        (body(inventory={"gpus": [{"index": 0}]}), "missing_field"),
        (body(parents=["MIG-a"]), "bad_field"),
        (body(parents={"MIG-a": 5}), "bad_field"),
    ],
)
def test_what_is_needed_and_wrong_has_a_reason(message: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode_sample(message)
    assert caught.value.reason == reason
    assert caught.value.detail


def test_another_content_type_is_refused_by_name() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_sample(body(), b"application/x-rows")
    assert caught.value.reason == "content_type"


def test_a_content_type_with_parameters_is_the_same_type() -> None:
    assert decode_sample(body(), b"application/json; charset=utf-8").node == "n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("decode", [decode_sample, decode_window, decode_alert])
@given(data=st.binary(max_size=60) | JSON.map(lambda value: orjson.dumps(_big(value))))
def test_no_bytes_raise_anything_but_a_decode_error(
    decode: Callable[[bytes], object], data: bytes
) -> None:
    with contextlib.suppress(DecodeError):
        decode(data)


@given(name=st.sampled_from([*VALID, "events", "jobs", "inventory", "parents", "status"]), v=JSON)
def test_no_value_of_a_known_field_raises_anything_but_a_decode_error(name: str, v: Any) -> None:
    with contextlib.suppress(DecodeError):
        decode_sample(body(**{name: _big(v)}))


def _big(value: Any) -> Any:
    """Bring integers into the 64 bits that JSON readers take."""
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, list):
            return [_big(item) for item in value]
        if isinstance(value, dict):
            return {key: _big(item) for key, item in value.items()}
        return value
    return max(-(2**63), min(value, 2**63 - 1))


NUMBERS = (
    st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
)


@given(data=st.data(), ticks=st.integers(1, 3), gpus=st.integers(0, 3))
def test_any_sample_comes_back_as_it_went(data: st.DataObject, ticks: int, gpus: int) -> None:
    column = st.lists(NUMBERS, min_size=ticks * gpus, max_size=ticks * gpus)
    columns = st.dictionaries(st.sampled_from(sorted(METRICS)), column, max_size=4)
    sample = NodeSample(
        node=data.draw(st.text(min_size=1)),
        boot_id="b",
        seq=data.draw(st.integers(0, 2**53)),
        ts=tuple(T0 + 10 * tick for tick in range(ticks)),
        gpu=tuple(f"GPU-{i}" for i in range(gpus)),
        m=data.draw(columns),
    )
    assert decode_sample(encode(sample)) == sample


def test_nan_and_infinity_are_null_on_the_wire() -> None:
    sample = NodeSample(
        node="n",
        boot_id="b",
        seq=0,
        ts=(T0,),
        gpu=("GPU-a", "GPU-b"),
        m={"power_watts": [float("nan"), float("inf")]},
    )
    assert decode_sample(encode(sample)).m == {"power_watts": [None, None]}
