//go:build gpu

package suspend

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// init confines a child process as the unit of the broker does: it keeps three
// capabilities, gains no privileges, and maps no writable memory as executable.
// Where root may, as not in most containers, it has no network either.
func init() {
	if os.Getenv("GS_CONFINED") == "" || len(os.Args) != 4 || os.Args[1] != Command {
		return
	}
	runtime.LockOSThread()
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != unix.EPERM {
		must(err)
	}
	var kept uint32
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		switch c {
		case unix.CAP_KILL, unix.CAP_SYS_PTRACE, unix.CAP_SYS_RESOURCE:
			kept |= 1 << c
		default:
			must(unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0))
		}
	}
	header, data := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	must(unix.Capget(header, &data[0]))
	kept &= data[0].Permitted // a container may have fewer
	data = [2]unix.CapUserData{{Effective: kept, Permitted: kept}}
	must(unix.Capset(header, &data[0]))
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	const setMDWE, refuseExecGain = 65, 1
	must(unix.Prctl(setMDWE, refuseExecGain, 0, 0, 0))
}

// TestGPUSuspendConfined suspends and resumes programs of root and of another
// user by child processes with no more rights than the broker's unit has.
func TestGPUSuspendConfined(t *testing.T) {
	for name, uid := range map[string]uint32{"root": 0, "nobody": 65534} {
		t.Run(name, func(t *testing.T) {
			e := train(t, uid)
			e.tell("go 1")
			e.hear("did")
			down, up := suspender("GS_CONFINED=1").cycle(t, e, listed(t, e.cmd.Process.Pid))
			t.Logf("suspended in %.2f s, resumed in %.2f s", down, up)
			e.tell("go 1")
			if did := e.hear("did"); did != "2" {
				t.Errorf("it did %s steps", did)
			}
		})
	}
}
