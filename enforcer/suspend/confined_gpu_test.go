//go:build gpu

package suspend

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// init confines a child process as the unit of the broker does: it keeps the capabilities whose bits are in
// GS_CONFINED, gains no privileges, and maps no writable memory as executable. Where root may, as not in most
// containers, it has no network either.
func init() {
	wanted, err := strconv.ParseUint(os.Getenv("GS_CONFINED"), 0, 64)
	if err != nil || len(os.Args) != 4 || os.Args[1] != Command {
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
	header, data := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	must(unix.Capget(header, &data[0]))
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if wanted>>c&1 == 0 {
			must(unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0))
		}
	}
	for i := range data { // a container may have fewer
		kept := data[i].Permitted & uint32(wanted>>(32*i))
		data[i] = unix.CapUserData{Effective: kept, Permitted: kept}
	}
	must(unix.Capset(header, &data[0]))
	must(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	const setMDWE, refuseExecGain = 65, 1
	must(unix.Prctl(setMDWE, refuseExecGain, 0, 0, 0))
}

// brokers returns the capabilities of the broker's unit.
func brokers(t *testing.T) (set uint64) {
	t.Helper()
	unit := fixture.Value(os.ReadFile("../../deploy/systemd/gpusteward-broker.service"))(t)
	_, rest, _ := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	line, _, _ := strings.Cut(rest, "\n")
	numbers := map[string]int{"CAP_DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "CAP_KILL": unix.CAP_KILL,
		"CAP_SYS_PTRACE": unix.CAP_SYS_PTRACE, "CAP_SYS_RESOURCE": unix.CAP_SYS_RESOURCE}
	for _, name := range strings.Fields(line) {
		number, known := numbers[name]
		fixture.Stop(t, !known, "give %s its number in this test", name)
		set |= 1 << number
	}
	return set
}

// TestGPUSuspendNeeds tells which capabilities the driver needs to reach the process of another user.
func TestGPUSuspendNeeds(t *testing.T) {
	e := train(t, 65534)
	e.tell("go 1")
	e.hear("did")
	lock := filepath.Join(t.TempDir(), "lock")
	ask := func(caps uint64) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := Helper(lock, fmt.Sprint("GS_CONFINED=", caps))(ctx, Ask, e.cmd.Process.Pid)
		return err
	}
	const all = 1<<63 - 1
	t.Logf("with all of them: %v; with the broker's: %v", ask(all), ask(brokers(t)))
	for c := range unix.CAP_LAST_CAP + 1 {
		if err := ask(all &^ (1 << c)); err != nil {
			t.Logf("capability %d is necessary: %v", c, err)
		}
	}
}

// TestGPUSuspendConfined suspends and resumes programs of root and of another
// user by child processes with no more rights than the broker's unit has.
func TestGPUSuspendConfined(t *testing.T) {
	for name, uid := range map[string]uint32{"root": 0, "nobody": 65534} {
		t.Run(name, func(t *testing.T) {
			e := train(t, uid)
			e.tell("go 1")
			e.hear("did")
			down, up := suspender(t, fmt.Sprint("GS_CONFINED=", brokers(t))).cycle(t, e, listed(t, e.cmd.Process.Pid))
			t.Logf("suspended in %.2f s, resumed in %.2f s", down, up)
			e.tell("go 1")
			fixture.Equal(t, e.hear("did"), "2", "it did … steps")
		})
	}
}
