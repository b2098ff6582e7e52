"""The words of messages, in English and Chinese.

What the detector wrote itself (summary, cause, steps) stays as it wrote it; everything around it,
and the title, comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ACTIONS", "KINDS", "WORDS", "Language"]

Language = str

#: Kind to what it is called in a title. A pair: English, Chinese.
KINDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "leak": ("memory leak, will run out of memory", "显存泄漏，将耗尽显存"),
        "fast_growth": ("memory grows fast, will run out", "显存快速增长，将耗尽"),
        "at_limit": ("memory is full", "显存已满"),
        "hw_thermal": ("throttled by heat (hardware)", "因过热降频（硬件）"),
        "sw_thermal": ("throttled by heat (software)", "因过热降频（软件）"),
        "power_brake": ("hardware power brake", "硬件功率制动"),
        "hw_slowdown": ("hardware slowdown", "硬件降速"),
        "clock_stuck_low": ("clock stuck low", "时钟频率卡在低位"),
        "power_limit_low": ("power limit is low", "功率上限偏低"),
        "peer_outlier": ("hotter than its peers", "温度高于同类 GPU"),
        "degraded_cooling": ("cooling is getting worse", "散热能力下降"),
        "runaway": ("temperature runs away", "温度失控上升"),
        "memory_hot": ("memory is too hot", "显存温度过高"),
        "near_limit": ("close to its temperature limit", "接近温度上限"),
        "fan": ("fan fault", "风扇故障"),
        "sensor_stuck": ("temperature sensor stuck", "温度传感器卡死"),
        "node_airflow": ("airflow of the node is bad", "节点风道异常"),
        "straggler": ("slower than its peers, the job waits", "慢于同组，作业被拖慢"),
        "idle_member": ("idle member of a busy job", "作业中有空闲成员"),
        "hang": ("rank hangs", "进程挂起"),
        "collective_hang": ("all ranks hang", "全部进程挂起"),
        "xid": ("driver error (Xid)", "驱动错误（Xid）"),
        "ecc_uncorrected": ("uncorrectable memory error", "不可纠正的显存错误"),
        "ecc_corrected_storm": ("storm of corrected memory errors", "可纠正显存错误激增"),
        "row_remap": ("memory row remapping", "显存行重映射"),
        "pcie_degraded": ("PCIe link degraded", "PCIe 链路降级"),
        "nvlink": ("NVLink errors", "NVLink 错误"),
        "needs_reset": ("needs a reset", "需要复位"),
        "lost": ("fell off the bus", "掉卡"),
        "missing": ("is missing", "缺失"),
        "node_silent": ("no telemetry", "无监控数据"),
        "collector_blind": ("collector sees no GPU", "采集器看不到 GPU"),
        "driver_unresponsive": ("driver does not answer", "驱动无响应"),
        "stale_values": ("readings do not change", "读数停滞"),
        "clock_skew": ("clock is wrong", "时钟偏差"),
        "bad_data": ("impossible readings", "读数异常"),
        "delivery_failing": ("notifications do not get through", "通知无法送达"),
        "heartbeat_missing": ("heartbeat is missing", "心跳缺失"),
        "external": ("alert of another tool", "外部告警"),
        "idle_allocated": ("allocated and idle", "已分配但空闲"),
        "data_starvation": ("waits for data", "等待数据"),
        "low_utilization": ("little used", "利用率低"),
        "multivariate": ("behaves unusually", "行为异常"),
        "drift": ("drifts from its past", "偏离历史水平"),
    }
)

#: Action class to what to do, without a full stop.
ACTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "watch": ("Watch it", "持续观察"),
        "restart_app": ("Restart the application", "重启应用"),
        "reset_gpu": ("Drain the node and reset the GPU", "隔离节点并复位 GPU"),
        "reboot_node": ("Drain and reboot the node", "隔离并重启节点"),
        "drain_node": ("Drain the node", "隔离节点"),
        "check_cooling": ("Check the cooling", "检查散热"),
        "check_power": ("Check the power supply", "检查供电"),
        "replace": ("Drain the node and replace the GPU", "隔离节点并更换 GPU"),
    }
)

#: The rest, by a short name. A pair: English, Chinese.
WORDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "info": ("INFO", "提示"),
        "warning": ("WARNING", "警告"),
        "critical": ("CRITICAL", "严重"),
        "resolved": ("RESOLVED", "已恢复"),
        "where": ("Where", "位置"),
        "gpu": ("GPU", "GPU"),
        "job": ("Job", "作业"),
        "since": ("Since", "开始"),
        "ended": ("Ended", "结束"),
        "lasted": ("lasted", "持续"),
        "for": ("for", "已"),
        "evidence": ("Evidence", "证据"),
        "expected": ("expected", "预期"),
        "at_most": ("at most", "至多"),
        "at_least": ("at least", "至少"),
        "before": ("usually", "历史"),
        "peers": ("peers", "同类"),
        "over": ("over", "窗口"),
        "cause": ("Likely cause", "可能原因"),
        "next": ("Next", "处理"),
        "unknown": ("Not measured", "未测得"),
        "end_reason": ("What ended it", "结束原因"),
        "delayed": (
            "It ended before this message could be delivered.",
            "本通知送达延迟：送达前告警已结束。",
        ),
        "replay": ("Sent again on request.", "应请求重新发送。"),
        "test": ("This is a test message of foreshock.", "这是 foreshock 的测试消息。"),
        "reminder": ("Reminder: it still holds.", "提醒：告警仍未恢复。"),
        "escalated": ("The severity has risen.", "严重程度已升级。"),
        "reopened": ("It has come back.", "告警再次出现。"),
        "flapping": ("It comes and goes; silent until it is stable.", "反复出现；稳定前不再通知。"),
        "open": ("Open", "查看"),
        "more": ("more", "更多"),
        "digest": ("alerts in one message", "条告警合并通知"),
        "new": ("firing", "告警中"),
        "over_now": ("resolved", "已恢复"),
    }
)
