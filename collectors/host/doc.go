// Package host reads what the host's kernel knows about GPUs: its log, the owners of
// processes, PCI devices, InfiniBand ports, hanging tasks, and the allocations of schedulers.
//
// A Table maps a PID to its owner, a Workload, by /proc/PID/cgroup: a pod, container, Slurm
// step, job of another batch system, systemd unit or user. The layouts of batch systems are
// rows (batch.go). The outermost boundary counts, so that a process cannot claim another
// identity from inside it. What is below user.slice belongs to its user. In a container the
// agent needs the PID namespace and the procfs of the host.
//
// A process is its PID and its start time. The Table keeps /proc/PID open, and one fstatat
// tells whether the process is still the same. Run fetches names in the background: from
// Docker, Podman and the kubelet's links to logs, and the number of a Slurm job from the
// record of Slurm's prolog or, for a cgroup with an SLUID, from the titles of Slurm's daemons.
// Without a record, a job's environment says whose it is, for display only. A workload is
// shown once its name is known, or when no source has answered within 2 s, and keeps that
// name. Users who are not in /etc/passwd are looked up in the directories of nsswitch.conf,
// by one goroutine, because a dead server can block it.
//
// One reader (KernelLog) serves all followers of the kernel's log. A slow follower delays no
// other: it reads the rest from the kernel's ring, and what the ring has dropped is counted.
// Only lines of the kernel itself count, because users can write to /dev/kmsg.
//
// Invariants:
//
//   - A look-up never waits for a source of names: each may be absent, fail or hang.
//   - The key of a workload never changes once it was shown.
//   - Files of /proc that can keep their reader are read by package procs.
//
// Begin with Table in table.go, ParseCgroup in cgroup.go and KernelLog in kernellog.go.
package host
