"""Which job uses a GPU: by the cgroup and environment of its processes, a file, or a setting."""
