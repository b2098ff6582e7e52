"""The binary body: the same sample as the JSON one, and damaged ones are refused with a reason."""

from __future__ import annotations

import struct

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.binary import BINARY_CONTENT_TYPE, encode_binary
from schemas.codec import decode_sample, encode, sample_headers
from schemas.columns import columns_of_lists, packed
from schemas.errors import DecodeError
from schemas.sample import CollectorStatus, GpuInventory, Inventory, NodeSample, SampleEvent

T0 = 1_790_000_000_000
NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9))


def sample(columns: dict[str, list[float | None]], ticks: int, gpus: int) -> NodeSample:
    return NodeSample(
        node="n",
        boot_id="b",
        seq=3,
        ts=tuple(T0 + 1000 * tick for tick in range(ticks)),
        gpu=tuple(f"GPU-{number}" for number in range(gpus)),
        m=columns,
        collector=CollectorStatus(source="simulated"),
        status={"power_watts": {"0": "stale"}},
        events=(SampleEvent(ts=T0, kind="xid", xid=79),),
        inventory=Inventory(gpus=(GpuInventory(gpu="GPU-0", index=0, model="H100"),)),
        host={"load1": 0.5},
    )


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 3))
def test_both_bodies_decode_to_the_same_sample(data: st.DataObject, ticks: int, gpus: int) -> None:
    column = st.lists(NUMBERS, min_size=ticks * gpus, max_size=ticks * gpus)
    names = data.draw(st.sets(st.sampled_from(["power_watts", "temperature_celsius"])))
    sent = sample({name: data.draw(column) for name in sorted(names)}, ticks, gpus)
    binary = decode_sample(encode_binary(sent), BINARY_CONTENT_TYPE)
    json = decode_sample(encode(sent))
    assert binary == json
    assert packed(binary.m) == packed(json.m)
    assert encode(binary) == encode(NodeSample(**{**fields_of(json), "m": dict(binary.m)}))


def fields_of(message: NodeSample) -> dict[str, object]:
    return {name: getattr(message, name) for name in NodeSample.__dataclass_fields__}


def test_a_missing_number_is_nan_in_the_block_and_none_in_the_lists() -> None:
    columns = columns_of_lists({"power_watts": [None, 2]}, 2)
    first, second = struct.unpack("<2d", columns.block)
    assert first != first  # noqa: PLR0124 - only NaN differs from itself
    assert second == 2.0
    decoded = decode_sample(
        encode_binary(sample({"power_watts": [None]}, 1, 1)), BINARY_CONTENT_TYPE
    )
    assert decoded.m["power_watts"] == [None]


def test_metrics_of_a_newer_version_are_left_out_of_the_block() -> None:
    body = encode_binary(sample({"quark_flux": [5.0], "power_watts": [7.0]}, 1, 1))
    decoded = decode_sample(body, BINARY_CONTENT_TYPE)
    assert dict(decoded.m) == {"power_watts": [7.0]}
    assert packed(decoded.m)[1] == struct.pack("<d", 7.0)


def test_the_header_says_which_body_it_is() -> None:
    headers = dict(sample_headers(sample({}, 1, 1), binary=True))
    assert headers["content-type"] == BINARY_CONTENT_TYPE


def header(**changes: object) -> bytes:
    fields = orjson.loads(encode(sample({}, 1, 1))) | {"m": ["power_watts"]} | changes
    text = orjson.dumps(fields)
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_binary"),
        (b"\x01\x00", "not_binary"),
        (struct.pack("<I", 99) + b"{}", "not_binary"),
        (struct.pack("<I", 2) + b"{]", "not_json"),
        (struct.pack("<I", 2) + b"[]", "not_object"),
        (header(schema="gpu.sample/2") + bytes(8), "schema"),
        (header(), "bad_length"),
        (header() + bytes(7), "bad_length"),
        (header() + bytes(16), "bad_length"),
        (header(m={"power_watts": [1.0]}) + bytes(8), "bad_field"),
        (header(m=[1]) + bytes(8), "bad_field"),
        (header(m=["power_watts", "power_watts"]) + bytes(16), "bad_field"),
        (header(seq=-1) + bytes(8), "bad_field"),
    ],
)
def test_a_damaged_body_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(DecodeError) as refused:
        decode_sample(body, BINARY_CONTENT_TYPE)
    assert refused.value.reason == reason


@pytest.mark.parametrize("value", [True, False, "1", [1], {"a": 1}])
def test_what_is_no_number_is_refused_in_a_json_column(value: object) -> None:
    fields = orjson.loads(encode(sample({}, 1, 2))) | {"m": {"power_watts": [1.0, value]}}
    with pytest.raises(DecodeError) as refused:
        decode_sample(orjson.dumps(fields))
    assert refused.value.reason == "bad_value"
