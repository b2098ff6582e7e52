"""Several processes on one file: none takes itself for the last one while another still works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bus import BusSettings, Record, open_bus
from schemas.topics import SAMPLES

VISIT = """
import sys
from pathlib import Path
from bus import BusSettings, open_bus
bus = open_bus(BusSettings(path=Path(sys.argv[1])))
bus.describe_topics()
publisher = bus.publisher(client_id="visitor")
publisher.send("gpu.samples", key=b"n", value=b"from the visitor")
assert publisher.close() == 0
bus.close()
"""


def test_a_visitor_does_not_take_the_log_away_from_a_process_at_work(tmp_path: Path) -> None:
    """Opening the file a second time must not drop the locks that the first time took."""
    path = tmp_path / "bus.sqlite"
    bus = open_bus(BusSettings(path=path))
    bus.create_topics()
    reader = bus.subscriber(group="g", topics=[SAMPLES.name])
    reader.poll(1, 0.1)
    bus.publisher(client_id="second").close()  # one more connection of this process, and its end
    bus.describe_topics()
    wal = path.with_name("bus.sqlite-wal")
    before = wal.stat().st_ino
    subprocess.run([sys.executable, "-c", VISIT, str(path)], timeout=60, check=True)
    assert wal.exists()
    assert wal.stat().st_ino == before
    records: list[Record] = []
    for _ in range(100):
        records += reader.poll(10, 0.1)
        if records:
            break
    assert [record.value for record in records] == [b"from the visitor"]
    reader.close()
    bus.close()
