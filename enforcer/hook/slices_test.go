package hook

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// A pageBroker is a broker of one process, which does nothing but write its page and hear what it reports.
type pageBroker struct {
	conn   *net.UnixConn
	page   wire.Page
	usages chan wire.Usage // the last one
}

// busy starts a program that keeps a simulated GPU busy, until the test ends. Its contexts have channel groups.
func busy(t *testing.T, gpu string, env ...string) (*pageBroker, int) {
	t.Helper()
	so, stub := here.made(t)
	b, cmd := launches(t, io.Discard, append(env, "LD_PRELOAD="+so+":"+filepath.Join(stub, "libcuda.so.1"),
		"LD_LIBRARY_PATH="+stub, "GS_STUB_FILE="+gpu)...)
	return b, cmd.Process.Pid
}

// launches starts a program that launches kernels of 500 us under the hook, and
// under a broker of its own, until the test ends.
func launches(t *testing.T, out io.Writer, env ...string) (*pageBroker, *exec.Cmd) {
	t.Helper()
	_, stub := here.made(t)
	dir := fixture.Value(os.MkdirTemp("", "slices"))(t) // the names of t.TempDir are too long for a socket
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "broker.sock")
	listener := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	defer listener.Close() // who loses this broker finds no other one
	cmd := exec.Command(filepath.Join(stub, "load"), "--kernel-us=500")
	cmd.Env = append(slices.Clone(env), "GPUSTEWARD_SOCKET="+socket)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	b := &pageBroker{usages: make(chan wire.Usage, 1)}
	for welcomed := false; !welcomed; welcomed = b.welcome(t) {
		conn := fixture.Value(listener.AcceptUnix())(t)
		fixture.Must(t, conn.SetReadDeadline(time.Now().Add(hang)))
		t.Cleanup(func() { _ = conn.Close() })
		b.conn = conn
	}
	go b.hear()
	return b, cmd
}

// welcome answers the hook, unless that has stopped to wait for it, and will come again.
func (b *pageBroker) welcome(t *testing.T) bool {
	t.Helper()
	frame := make([]byte, wire.FrameMax)
	n := fixture.Value(b.conn.Read(frame))(t)
	hello, _, err := wire.Decode(frame[:n])
	fixture.Must(t, err)
	fd := fixture.Value(unix.MemfdCreate("page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	defer unix.Close(fd)
	fixture.Must(t, unix.Ftruncate(fd, wire.PageSize))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	fixture.Must(t, err)
	page := fixture.Value(unix.Mmap(fd, 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { _ = unix.Munmap(page) })
	b.page = page
	b.page.Init(7)
	b.page.SetHeartbeat(1 << 62) // it beats longer than any test
	w := wire.Welcome{GPUs: 1, Heartbeat: 1000, PageBytes: wire.PageSize}
	_, _, err = b.conn.WriteMsgUnix(w.Append(wire.Header{Type: wire.TypeWelcome, Seq: hello.Seq, Session: 7}.Append(nil)),
		unix.UnixRights(fd), nil)
	if errors.Is(err, unix.EPIPE) {
		return false
	}
	fixture.Must(t, err)
	return true
}

// hear keeps the last report, until the connection ends.
func (b *pageBroker) hear() {
	defer close(b.usages)
	frame := make([]byte, wire.FrameMax)
	for {
		n, err := b.conn.Read(frame)
		if err != nil || n == 0 {
			return
		}
		h, payload, err := wire.Decode(frame[:n])
		if err != nil || (h.Type != wire.TypeUsage && h.Type != wire.TypeYield) {
			continue
		}
		var u wire.Usage
		u.Decode(payload)
		select {
		case <-b.usages:
		default:
		}
		b.usages <- u
	}
}

func (b *pageBroker) slice(us uint32) {
	b.page.SetTurn(0, wire.Turn{Mode: wire.ModeOpen, Slice: us})
	b.page.Ring()
}

// until waits for a report.
func (b *pageBroker) until(t *testing.T, what string, is func(wire.Usage) bool) {
	t.Helper()
	for u := range b.usages {
		if is(u) {
			return
		}
	}
	t.Fatalf("the session ended before a report of %s", what)
}

// A gpuWatch follows what a simulated GPU does.
type gpuWatch struct {
	lines *bufio.Scanner
	pid   int // whose share it is
}

func watchGPU(t *testing.T, gpu string, pid int) *gpuWatch {
	t.Helper()
	_, stub := here.made(t)
	cmd := exec.Command(filepath.Join(stub, "stat"), "20")
	cmd.Env = []string{"GS_STUB_FILE=" + gpu}
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	timer := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() { timer.Stop(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &gpuWatch{bufio.NewScanner(out), pid}
}

// until waits until the process had such a part of the work of 300 ms.
func (w *gpuWatch) until(t *testing.T, what string, is func(share float64) bool) {
	t.Helper()
	var begun, mine, all, mine0, all0 int64
	for w.lines.Scan() {
		var now, gpu, pid, busy int64
		fixture.Must(t, fixture.Error(fmt.Sscan(w.lines.Text(), &now, &gpu, &pid, &busy)))
		if pid != 0 {
			all += busy
			if int(pid) == w.pid {
				mine += busy
			}
			continue
		}
		if begun == 0 || all-all0 > 300e6 { // the lines of one look are complete
			if begun != 0 && is(float64(mine-mine0)/float64(all-all0)) {
				return
			}
			begun, mine0, all0 = now, mine, all
		}
		mine, all = 0, 0
	}
	t.Fatalf("the GPU was never shared %s", what)
}

// TestSlice has two programs keep a GPU busy. A longer time slice gives one of them
// more of it. When its broker is silent, it has the driver's default again.
func TestSlice(t *testing.T) {
	t.Parallel()
	gpu := filepath.Join(t.TempDir(), "gpu")
	one, pid := busy(t, gpu)
	two, _ := busy(t, gpu)
	share := watchGPU(t, gpu, pid)
	equally := func(s float64) bool { return s > 0.35 && s < 0.65 }
	share.until(t, "equally", equally)
	one.slice(20000) // the default is 2000
	one.until(t, "the slice", func(u wire.Usage) bool { return u.Slice == 20000 })
	share.until(t, "by slices", func(s float64) bool { return s > 0.75 })
	one.slice(0)
	one.until(t, "the default", func(u wire.Usage) bool { return u.Slice == 0 })
	share.until(t, "equally again", equally)
	two.slice(20000)
	share.until(t, "the other way round", func(s float64) bool { return s < 0.25 })
	two.page.SetHeartbeat(1)
	share.until(t, "equally without a broker", equally)
}

// TestSliceRefused has a driver refuse a slice. The broker hears of it once.
func TestSliceRefused(t *testing.T) {
	t.Parallel()
	b, _ := busy(t, filepath.Join(t.TempDir(), "gpu"), "GS_STUB_SLICES=refused")
	for _, us := range []uint32{500, 600} {
		b.slice(us)
		b.until(t, "the refusal", func(u wire.Usage) bool { return u.Refused == 1 && u.Slice == 0 })
	}
}
