"""Numbers of another exporter: dcgm-exporter, and nvidia_gpu_exporter, in Prometheus text."""
