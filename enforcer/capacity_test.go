package enforcer_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

const gib = 1 << 30

// A card is an empty GPU of 80 GiB.
type card struct{}

func (card) DeviceProcesses() []collectors.DeviceProcess { return nil }
func (card) Silent() map[string]bool                     { return nil }
func (card) Process(int) (kernel.Process, error)         { return kernel.Process{}, os.ErrNotExist }
func (card) Memory(string) (total, free, reserved uint64, ok bool) {
	return 80 * gib, 79 * gib, gib, true
}
func (card) Rates(string) (link, memory float64, ok bool) { return 0, 0, false }
func (card) holds(string, int) (bytes uint64, at time.Time, there bool) {
	return 0, time.Now(), false
}

// A speaker is a process that may tell the broker anything.
type speaker struct {
	t       *testing.T
	conn    *net.UnixConn
	session uint64
}

// speak opens a session on the card that claims to hold some bytes.
func speak(t *testing.T, socket, tenant string, bytes uint64) *speaker {
	t.Helper()
	return speakOf(t, socket, tenant, [16]byte{15: 1}, bytes)
}

func speakOf(t *testing.T, socket, tenant string, gpu [16]byte, bytes uint64) *speaker {
	t.Helper()
	conn := fixture.Value(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	s := &speaker{t: t, conn: conn}
	hello := wire.Hello{GPUs: 1, UUID: [wire.GPUs][16]byte{gpu}, Committed: [wire.GPUs]uint64{bytes}}
	copy(hello.Tenant[:], tenant)
	h, _ := s.ask(wire.TypeResume, &hello)
	fixture.Need(t, h.Type, wire.TypeWelcome, "the answer to HELLO")
	s.session = h.Session
	return s
}

func (s *speaker) send(typ wire.Type, m interface{ Append([]byte) []byte }) {
	s.t.Helper()
	fixture.Must(s.t, fixture.Error(s.conn.Write(m.Append(wire.Header{Type: typ, Session: s.session}.Append(nil)))))
}

func (s *speaker) ask(typ wire.Type, m interface{ Append([]byte) []byte }) (wire.Header, []byte) {
	s.t.Helper()
	s.send(typ, m)
	_ = s.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	in := make([]byte, wire.FrameMax)
	n := fixture.Value(s.conn.Read(in))(s.t)
	h, payload, err := wire.Decode(in[:n])
	fixture.Must(s.t, err)
	return h, payload
}

// hoard reserves the bytes, and commits them if it is to.
func (s *speaker) hoard(bytes uint64, commits bool) {
	s.t.Helper()
	h, payload := s.ask(wire.TypeReserve, &wire.Memory{Bytes: bytes})
	var m wire.Memory
	if m.Decode(payload); h.Type == wire.TypeGrant && commits {
		s.send(wire.TypeCommit, &m)
	}
}

// take reserves as many of the bytes as it can get, and returns how many that is.
func (s *speaker) take(bytes uint64) uint64 {
	s.t.Helper()
	for {
		h, payload := s.ask(wire.TypeReserve, &wire.Memory{Bytes: bytes})
		var m wire.Memory
		m.Decode(payload)
		if h.Type == wire.TypeGrant || m.Bytes == 0 {
			return m.Bytes
		}
		bytes = m.Bytes
	}
}

// shared runs an enforcer of the card, and returns it and its socket. Half of
// the card is reserved for an absent tenant.
func shared(t *testing.T) (e *enforcer.Enforcer, socket string) {
	t.Helper()
	dir := fixture.ShortDir(t)
	kept := none
	kept.Reserved = 40 * gib
	rule := func(name string, q policy.Quota) policy.Rule {
		return policy.Rule{Name: name, Terms: policy.Terms{Priority: policy.PriorityNormal, Quota: q},
			Steps: quick(policy.Warn)}
	}
	table := judging(rule("kept", kept), rule("liar", none), rule("third", none))
	socket = filepath.Join(dir, "s")
	e, err := enforcer.New(enforcer.Options{Tick: tick, Policy: policy.New(table, policy.HostView{}, nil), Dir: dir, Host: card{},
		Broker: broker.Options{Socket: socket, Holds: card{}.holds}})
	fixture.Must(t, err)
	fixture.Running(t, e.Run)
	return e, socket
}

// TestMemoryIsKeptFromTheFirst asks for all of a GPU that nobody shared before.
func TestMemoryIsKeptFromTheFirst(t *testing.T) {
	t.Parallel()
	_, socket := shared(t)
	fixture.Equal(t, speak(t, socket, "third", 0).take(200*gib), 39*gib, "given of 79 GiB of which 40 are kept")
}

// TestFalseMemoryClaimTakesNothing has a tenant claim more memory than any card
// has, while another takes memory. Then the tenant claims to have freed it.
func TestFalseMemoryClaimTakesNothing(t *testing.T) {
	t.Parallel()
	const lie = 16 << 40
	e, socket := shared(t)
	liar := speak(t, socket, "liar", lie)
	poll(t, 10*time.Second, "the books are not compared", func() bool { return len(e.Stats().Enforcer.Quotas) > 0 })
	fixture.Equal(t, speak(t, socket, "third", 0).take(10*gib), 10*gib, "given to another while one lies")
	liar.send(wire.TypeFree, &wire.Memory{Bytes: lie})
	fixture.Equal(t, liar.take(200*gib), 29*gib, "given to the liar of 79 GiB of which 40 are kept and 10 taken")
}

// TestUnifiedMemory has a GPU whose memory NVML does not tell: a cap in percent is in
// force, and a suspended workload comes back.
func TestUnifiedMemory(t *testing.T) {
	t.Parallel()
	a := startAgentOn(t, stub(t, "GS_STUB_UNIFIED=1", fmt.Sprint("GS_STUB_MEMORY=", 1<<30)),
		"  tenants:\n    - {name: a, select: [{executables: [\"*/a\"]}], memory: 25 %}\n", "all")
	poll(t, time.Minute, "CUDA is not asked", func() bool { return strings.Contains(a.log("all"), "and CUDA does") })
	w, most := a.hold("a", 0, "--alloc-mib=1000", "--alloc-step-mib=1")
	fixture.Equal(t, most, 256*mib, "it takes … bytes of 1 GiB")
	poll(t, time.Minute, "nobody holds the cap", func() bool {
		return strings.Contains(a.ask("/metrics"), `nvgpu_quota_backend_info{backend="hook",gpu="0",resource="memory"`)
	})
	fixture.Must(t, a.order("suspend", w.Cmd.Process.Pid))
	poll(t, time.Minute, "it is not suspended", func() bool { return a.recorded() == "suspended" })
	fixture.Must(t, a.order("resume-process", w.Cmd.Process.Pid))
	poll(t, time.Minute, "it does not come back", func() bool { return a.recorded() == "" })
}
