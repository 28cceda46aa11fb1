package agent

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"gpusteward/internal/worker"
)

// enforcing are the capabilities that --role=enforce keeps. They let it stop
// and end processes of others, read their owners and programs, and pass
// descriptors however many other processes of root have in flight. The driver needs
// CAP_DAC_OVERRIDE and CAP_SYS_PTRACE to suspend a process of another user.
// CAP_SYSLOG is for the kernel's log.
var enforcing = []int{unix.CAP_DAC_OVERRIDE, unix.CAP_KILL, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE, unix.CAP_SYSLOG}

// confine gives up all other capabilities for good. The process re-executes
// itself, because capabilities belong to threads, and a program with C in it
// cannot change those of all its threads. It returns nil if there is nothing to
// give up, as in the re-executed process.
func confine(keep []int) error {
	runtime.LockOSThread() // until the exec, or until the program ends because that fails
	kept := mask(keep)
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var bounding []int // in the bounding set, and not kept
	for c := 0; ; c++ {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // there are no more
		}
		if has == 1 && !slices.Contains(keep, c) {
			bounding = append(bounding, c)
		}
	}
	confined := (uint64(sets[1].Permitted)<<32|uint64(sets[0].Permitted))&^kept == 0
	may := sets[0].Effective&(1<<unix.CAP_SETPCAP) != 0
	if confined && (len(bounding) == 0 || !may) {
		runtime.UnlockOSThread()
		return nil
	}
	if may {
		for _, c := range bounding {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
				return fmt.Errorf("give up capability %d: %w", c, err)
			}
		}
	}
	if err := worker.Confine(keep); err != nil {
		return err
	}
	return fmt.Errorf("restart with fewer capabilities: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

func mask(capabilities []int) (m uint64) {
	for _, c := range capabilities {
		m |= 1 << c
	}
	return m
}
