"""Damage in recordings of nvidia-smi, dmon and exporters is counted and costs itself only."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.replay.settings import ReplaySettings
from collector.replay.source import ReplaySource
from collector.source import Reading
from schemas.errors import SourceError

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
\t<timestamp>Fri Aug 21 09:34:{second:02d} 2026</timestamp>
\t<driver_version>595.91.07</driver_version>
\t<gpu id="00000000:30:00.0">
\t\t<product_name>NVIDIA L40S</product_name>
\t\t<uuid>GPU-11111111-0000-0000-0000-000000000000</uuid>
\t\t<temperature><gpu_temp>{celsius} C</gpu_temp></temperature>
\t\t<fan_speed>N/A</fan_speed>
\t\t<utilization><gpu_util>[Not Supported]</gpu_util></utilization>
\t</gpu>
</nvidia_smi_log>
"""


def run(tmp_path: Path, text: str, name: str = "node7.txt") -> tuple[list[Reading], ReplaySource]:
    path = tmp_path / name
    path.write_text(text)
    source = ReplaySource(ReplaySettings(files=(path,)))
    found = []
    while not source.exhausted:
        found += source.read(0)
    return found, source


def temperatures(readings: list[Reading]) -> list[float | None]:
    return [reading.values["temperature_celsius"][0] for reading in readings]


def test_documents_one_after_the_other_are_readings_in_time(tmp_path: Path) -> None:
    text = "".join(XML.format(second=second, celsius=40 + second) for second in range(5))
    readings, source = run(tmp_path, text)
    assert temperatures(readings) == [40, 41, 42, 43, 44]
    assert source.interval_seconds == 1.0
    assert source.stats.damaged == 0


def test_a_document_that_is_cut_is_counted_and_the_next_one_read(tmp_path: Path) -> None:
    whole = [XML.format(second=second, celsius=40 + second) for second in range(4)]
    half = whole[1][: len(whole[1]) // 2] + "\n"
    damaged = whole[2].replace("</temperature>", "")
    readings, source = run(tmp_path, whole[0] + half + damaged + whole[3] + whole[3][:200])
    assert temperatures(readings) == [40, 43]
    assert source.stats.damaged == 3


def test_time_that_goes_back_is_counted(tmp_path: Path) -> None:
    text = "".join(XML.format(second=second, celsius=40) for second in (3, 1, 4, 4))
    readings, source = run(tmp_path, text)
    assert len(readings) == 2
    assert (source.stats.backwards, source.stats.duplicates) == (1, 1)


def test_a_document_that_declares_entities_is_refused(tmp_path: Path) -> None:
    text = XML.format(second=1, celsius=40)
    bomb = text.replace("<timestamp>", '<!ENTITY a "aaaa"><timestamp>')
    readings, source = run(tmp_path, text + bomb.replace(":01 2026", ":02 2026"))
    assert len(readings) == 1
    assert source.stats.damaged == 1


def test_absence_in_a_status_is_absence_with_its_reason(tmp_path: Path) -> None:
    lost = XML.replace("{celsius} C", "GPU is lost").replace("[Not Supported]", "Unknown Error")
    text = XML.format(second=1, celsius=40) + lost.format(second=2)
    readings, _ = run(tmp_path, text)
    assert "fan_ratio" not in readings[0].values
    assert "gpu_utilization_ratio" not in readings[0].values
    assert readings[1].status["temperature_celsius"] == {0: "error:15"}
    assert readings[1].status["gpu_utilization_ratio"] == {0: "error:999"}


TEXT = """
==============NVSMI LOG==============

Timestamp                                 : Thu Mar 14 20:46:{second:02d} 2024
Driver Version                            : 535.86.10

Attached GPUs                             : 1
GPU 00000001:00:00.0
    Product Name                          : NVIDIA A100
    Clocks Throttle Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    Temperature
        GPU Current Temp                  : {celsius} C
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
"""


def test_statuses_in_text_are_readings_even_if_one_is_cut(tmp_path: Path) -> None:
    first = TEXT.format(second=1, celsius=71)
    cut = TEXT.format(second=2, celsius=72)
    cut = cut[: cut.index("    Temperature")]
    readings, source = run(tmp_path, f"noise\n{first}{cut}{TEXT.format(second=3, celsius=73)}")
    assert [r.values.get("temperature_celsius", [None])[0] for r in readings] == [71, None, 73]
    assert readings[0].values["clock_event_reasons"] == [0x48]
    assert readings[0].values["temperature_margin_celsius"] == [18.0]
    assert source.stats.damaged == 0


DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz
 20250131   10:00:00      0    631     63     57    100     10   2619   1980
 20250131   10:00:00      1    620     60      -    100     10   2619   1980
 20250131   10:00:01      0    632     64     58    100     10   2619   1980
 20250131   10:00:01      1    62
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz
 20250131   10:00:02      0    633     64     58    100      9   2619   1980
 20250131   10:00:02      1    621     60      -    100      9   2619   1980
 20250131   10:00:00      1    621     60      -    100      9   2619   1980
 20250131   10:00:03      0    633     64 20250131   10:00:03      1   633     64     58
"""


def test_dmon_takes_headers_again_dashes_and_cut_lines(tmp_path: Path) -> None:
    readings, source = run(tmp_path, DMON)
    assert [len(reading.gpus) for reading in readings] == [2, 2, 2]
    assert readings[1].values["power_watts"] == [632.0, None]  # its line is cut: no reading
    assert [reading.ts - readings[0].ts for reading in readings] == [0, 1000, 2000]
    assert readings[0].ts == 1_738_317_600_000
    assert readings[0].values["memory_temperature_celsius"] == [57.0, None]
    assert readings[0].values["sm_clock_hertz"] == [1.98e9, 1.98e9]
    stats = source.stats
    assert (stats.headers, stats.damaged, stats.backwards) == (2, 2, 1)


DCGMI = """\
#Entity   GPUTL  MCUTL  TMPTR  POWER   SMCLK  FBUSD  FOO
ID
GPU 0     97     40     63     631.5   1980   20480  1
GPU 1     N/A    40     60     620.1   1980   20481  1
GPU 0     98     41     64     632.5   1980   20480  1
GPU 1     98
CPU 0     1      1      1      1       1      1      1
"""


def test_dcgmi_dmon_has_no_time_and_says_so(tmp_path: Path) -> None:
    readings, source = run(tmp_path, DCGMI)
    assert [len(reading.gpus) for reading in readings] == [2, 2]
    assert readings[1].values["power_watts"] == [632.5, None]
    assert readings[0].values["gpu_utilization_ratio"] == [0.97, None]
    assert readings[0].values["power_watts"] == [631.5, 620.1]
    assert readings[0].values["memory_used_bytes"] == [20480 * 2**20, 20481 * 2**20]
    assert readings[1].ts - readings[0].ts == 1000
    assert source.stats.damaged == 2
    assert any("says no time" in remark for remark in source.stats.remarks)


LABELS = 'gpu="{gpu}",UUID="GPU-a{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="n7"'


def scrape(celsius: float, ts: int | None = None) -> str:
    stamp = "" if ts is None else f" {ts}"
    lines = ["# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C)."]
    for gpu in (0, 1):
        labels = LABELS.format(gpu=gpu)
        lines.append(f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {celsius + gpu}{stamp}")
        lines.append(f"DCGM_FI_DEV_FB_USED{{{labels}}} 9223372036854775794{stamp}")
        lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 4294967295{stamp}")
    return "\n".join(lines) + "\n"


def test_scrapes_one_after_the_other_are_readings_with_blanks_as_gaps(tmp_path: Path) -> None:
    damaged = 'DCGM_FI_DEV_GPU_TEMP{gpu="0\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} hot\n'
    readings, source = run(tmp_path, scrape(40.0) + damaged + scrape(42.0), "scrapes.prom")
    assert [reading.values["temperature_celsius"] for reading in readings] == [[40, 41], [42, 43]]
    assert [reading.node for reading in readings] == ["n7", "n7"]
    assert readings[0].gpus == ("GPU-a0", "GPU-a1")
    assert "memory_used_bytes" not in readings[0].values
    assert readings[0].status["gpu_utilization_ratio"] == {0: "implausible", 1: "implausible"}
    assert source.stats.damaged == 2


def test_time_stamps_of_a_scrape_are_taken(tmp_path: Path) -> None:
    moment = 1_738_317_600_000
    readings, source = run(tmp_path, scrape(40.0, moment) + scrape(41.0, moment + 5000))
    assert [reading.ts for reading in readings] == [moment, moment + 5000]
    assert not source.stats.remarks


def test_damaged_yaml_is_counted_in_words(tmp_path: Path) -> None:
    readings, source = run(tmp_path, "device_defaults:\n  a: [\n", "profile.yaml")
    assert readings == []
    assert "damaged" in source.stats.complaints[0].reason


@pytest.mark.parametrize("text", ["hello\n" * 60, "gpu power\n0 400\n", "<xml>\n</xml>\n"])
def test_what_is_none_of_these_forms_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SourceError, match="neither the CSV of nvidia-smi"):
        run(tmp_path, text)
