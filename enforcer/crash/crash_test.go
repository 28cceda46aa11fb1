package crash

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

const (
	mib    = 1 << 20
	second = int64(time.Second)
	base   = uint64(0x7f4a_3c00_0000)
)

// TestWhereAnAddressLies: allocations that touch and that have been in the same place, 100 s after
// the clock's beginning.
func TestWhereAnAddressLies(t *testing.T) {
	at := 100 * second
	all := []wire.Allocation{
		{Address: base, Bytes: 4 * mib, Made: at - 31*second/10},
		{Address: base + 4*mib + 1024, Bytes: 4 * mib, Made: at - 2*second},
		{Address: base + 32*mib, Bytes: 4 * mib, Made: at - 20*second, Freed: at - 10*second},
		{Address: base + 32*mib, Bytes: 8 * mib, Made: at - 9*second, Freed: at - second/5},
		{Address: base + 64*mib, Bytes: 16 * mib, Made: at - 90*second, Freed: at + second}, // after the crash
		{Address: base + 128*mib, Bytes: 4 * mib, Made: at + second},
		{Address: 1 << 63, Bytes: 1 << 63, Made: at - 1}, // a lie
	}
	for _, c := range []struct {
		address  uint64
		unlisted uint64
		want     string
	}{
		{base + 4*mib + 512, 0, "is 512 bytes beyond the end of an allocation of 4 MiB, made 3.1 s before"},
		{base + 4*mib + 1000, 0, "is 24 bytes before the beginning of an allocation of 4 MiB, made 2.0 s before"},
		{base - 2*mib, 0, "is 2 MiB before the beginning of an allocation of 4 MiB, made 3.1 s before"},
		{base - 5*mib, 0, "is in no allocation of this program"},
		{base + 3*mib/2, 0, "lies in an allocation of 4 MiB, made 3.1 s before, 1.5 MiB from its beginning"},
		{base + 33*mib, 0, "lies in memory that was freed 0.2 s before: an allocation of 8 MiB, made 9.0 s before"},
		{base + 64*mib, 0, "lies in an allocation of 16 MiB, made 1.5 min before, 0 bytes from its beginning"},
		{base + 100*mib, 0, "is in no allocation of this program"},
		{base + 95*mib, 0, "is 15 MiB beyond the end of an allocation of 16 MiB, made 1.5 min before"},
		{8, 3, "is in no known allocation of this program; 3 are not known"},
	} {
		fixture.Equal(t, locate(c.address, at, all, c.unlisted), c.want, "%#x:", c.address)
	}
	fixture.Equal(t, locate(5, at, nil, 0), "is in no allocation of this program", "without any:")
	for n, want := range map[uint64]string{0: "0 bytes", 1023: "1023 bytes", 4096: "4 KiB", 5000: "5000 bytes",
		3 << 29: "1.5 GiB", 1 << 50: "1024 TiB"} {
		fixture.Equal(t, bytes(n), want, "%d:", n)
	}
	for text, want := range map[string]uint64{"MMU Fault: ENGINE GRAPHICS faulted @ 0x7f3c_1a000000. Fault is": 0x7f3c1a000000,
		"faulted @ 0x7f3c1a000000": 0, "Graphics SM Warp Exception": 0} {
		got, ok := addressIn(text)
		fixture.Equal(t, got, want, "%s:", text)
		fixture.Equal(t, ok, want != 0, "%s: it is an address:", text)
	}
}

// A program is a session whose trace the test writes. Its ticks are ns of CLOCK_MONOTONIC.
type program struct {
	broker.Traced
	trace, crash []byte
	head         uint64
}

func newProgram(session uint64, pid int, since time.Time) *program {
	trace, crash := make([]byte, wire.TraceSize), make([]byte, wire.CrashSize)
	p := &program{trace: trace, crash: crash, Traced: broker.Traced{Session: session, PID: pid, UID: 1000, Tenant: "a", Since: since,
		GPUs: []string{"GPU-a"}, Trace: wire.TraceIn(trace), Crash: wire.CrashIn(crash)}}
	binary.NativeEndian.PutUint32(p.trace[64:], 2)
	for i, v := range []int64{second, second, 2 * second, 2 * second} {
		binary.NativeEndian.PutUint64(p.trace[72+8*i:], uint64(v))
	}
	return p
}

// note writes an event of a thread.
func (p *program) note(at int64, kind wire.EventKind, id uint32, thread uint32) {
	const events = wire.TraceSize - 16*wire.EventsKept
	e := p.trace[events+16*int(p.head):]
	binary.NativeEndian.PutUint64(e, uint64(at))
	binary.NativeEndian.PutUint32(e[8:], id)
	binary.NativeEndian.PutUint32(e[12:], uint32(kind)|thread<<20)
	p.head++
	binary.NativeEndian.PutUint64(p.trace, p.head)
}

// has writes an allocation at a place.
func (p *program) has(place int, address, size uint64, made, freed int64) {
	for i, v := range []uint64{address, size, uint64(made), uint64(freed)} {
		binary.NativeEndian.PutUint64(p.crash[16+32*place+8*i:], v)
	}
}

// named writes the name of a kernel at a place, for launches since a time.
func (p *program) named(place int, since int64, id uint32, name string) {
	at := 16 + 32*wire.Allocations + 16*place
	binary.NativeEndian.PutUint64(p.crash[at:], uint64(since))
	binary.NativeEndian.PutUint32(p.crash[at+8:], id)
	binary.NativeEndian.PutUint32(p.crash[at+12:], uint32(64*place+1))
	copy(p.crash[16+32*wire.Allocations+16*wire.Kernels+64*place:], name)
}

// fails notes a fault that a call returned.
func (p *program) fails(result uint32, at int64) {
	binary.NativeEndian.PutUint64(p.trace[120:], uint64(at))
	binary.NativeEndian.PutUint32(p.trace[116:], result)
}

// A world is a recorder with a clock.
type world struct {
	t *testing.T
	Recorder
	now int64
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: 100 * second}
	w.Recorder = Recorder{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Now: func() int64 { return w.now }}
	return w
}

func (w *world) look() []Head {
	return w.Look(func(pid int) (string, string) { return "python3", fmt.Sprintf("slurm:%d", pid) })
}

// read returns a record as a user reads it.
func (w *world) read(uid uint32, id int) (r Record) {
	w.t.Helper()
	text, found, err := w.Record(uid, id)
	if err != nil || !found {
		w.t.Fatalf("crash %d is not there for user %d: %v", id, uid, err)
	}
	fixture.Must(w.t, json.Unmarshal(text, &r))
	return r
}

// xid is a line of the kernel's log, now.
func xid(pid, code int, text string) host.Record {
	return host.Record{Time: time.Now(), Text: fmt.Sprintf("NVRM: Xid (PCI:0000:00:06): %d, pid=%d, name=python3, %s", code,
		pid, text)}
}

const exception = "Graphics Exception: channel 0x0000000a, Class 0000cbc0"

const mmu = "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ %#x_%08x. Fault is of type FAULT_PDE"

// TestAnXIDIsExplained: an XID 31, a fault that the program is told, and its end.
func TestAnXIDIsExplained(t *testing.T) {
	w := newWorld(t)
	p, other := newProgram(1, 700, time.Now()), newProgram(2, 701, time.Now())
	p.has(0, base, 4*mib, 97*second, 0)
	p.named(0, 0, 7, "_Z6brokenPf")
	p.named(1, 0, 8, "gone")
	p.named(2, 98*second-1, 8, "fine")
	p.named(3, 99*second+1, 7, "later")
	p.note(98*second, wire.EventLaunch, 8, 1)
	p.note(98*second+1, wire.EventWait, uint32(wire.WaitStream), 1)
	p.note(98*second+2, wire.EventWaited, uint32(wire.WaitStream), 1)
	p.note(99*second, wire.EventLaunch, 7, 1)
	p.note(99*second+1, wire.EventWait, uint32(wire.WaitContext), 1)
	w.Observe(p.Traced)
	w.Observe(other.Traced)
	fixture.Equal(t, len(w.look()), 0, "crashes before the XID:")
	w.Kernel(host.Record{Priority: 8, Time: time.Now(), Text: xid(700, 31, "x").Text}) // of a user
	w.Kernel(xid(9, 31, "of nobody"))
	address := base + 4*mib + 512
	w.Kernel(xid(700, 31, fmt.Sprintf(mmu, address>>32, address&(1<<32-1))))
	w.now += second / 10
	p.fails(700, w.now)
	p.note(w.now+1, wire.EventWaited, uint32(wire.WaitContext), 1)
	binary.NativeEndian.PutUint64(p.trace[96:], uint64(second)) // it has no clock yet
	w.Observe(p.Traced)
	fixture.Equal(t, len(w.look()), 1, "crashes without a clock:")
	binary.NativeEndian.PutUint64(p.trace[96:], uint64(2*second))
	w.Observe(p.Traced)
	w.Observe(other.Traced)
	fixture.Equal(t, len(w.look()), 0, "new crashes when there is a clock:")
	told := w.Heads(1000)
	fixture.Need(t, len(told), 1, "crashes:")
	const says = "XID 31: 0x7f4a3c400200 is 512 bytes beyond the end of an allocation of 4 MiB, made 3.0 s before; in flight: broken"
	fixture.Equal(t, told[0].Says, says, "it says")
	r := w.read(1000, told[0].ID)
	if len(r.Launches) != 2 || r.Launches[0].Suspect || !r.Launches[1].Suspect || len(r.Suspects) != 1 || r.Error != 700 ||
		r.Workload != "slurm:700" || r.Comm != "python3" || len(r.Allocations) != 1 || r.Suspects[0].GPU != "GPU-a" || r.Launches[0].Kernel != "fine" {
		t.Errorf("the record is %+v", r)
	}
	var text strings.Builder
	fixture.Must(t, r.Text(&text))
	for _, part := range []string{says, "1.0 s", "* broken", "0x7f4a3c000000", "error 700 (illegal address)"} {
		fixture.Contains(t, text.String(), part, "the text")
	}

	p.Ends = true
	w.Observe(p.Traced)
	w.Kernel(xid(700, 43, "Ch 00000008"))
	fixture.Equal(t, len(w.look()), 0, "new crashes when another XID comes:")
	w.now += second
	w.look()
	fixture.Equal(t, len(w.read(0, r.ID).XIDs), 2, "XIDs of the crash:")
	w.now += 2 * int64(keepEnded)
	fixture.Equal(t, len(w.look()), 0, "crashes later:")
	fixture.Equal(t, len(w.sessions), 1, "sessions later:")

	again := Recorder{Dir: w.Dir, Log: w.Log}
	again.Open()
	fixture.Equal(t, len(again.Heads(1000)), 1, "crashes after a restart:")
	fixture.Equal(t, len(again.Heads(1001)), 0, "crashes of another user:")
	if _, found, err := again.Record(1001, r.ID); found || err != nil {
		t.Errorf("another user reads the record: %v", err)
	}
	info := fixture.Value(os.Stat(filepath.Join(w.Dir, "1.json")))(t)
	fixture.Equal(t, info.Mode().Perm(), 0o600, "the record's mode:")
}

// TestSuspects: a wait of a thread clears what it launched before, and one for the whole GPU what
// anybody launched before it began. A wait that goes on or ends with the crash clears nothing.
func TestSuspects(t *testing.T) {
	const stream, context = uint32(wire.WaitStream), uint32(wire.WaitContext)
	var s snapshot
	for i, e := range []wire.Event{
		{Kind: wire.EventLaunch, ID: 1, Thread: 1}, {Kind: wire.EventWait, ID: context, Thread: 2},
		{Kind: wire.EventLaunch, ID: 2, Thread: 1}, {Kind: wire.EventWaited, ID: context, Thread: 2},
		{Kind: wire.EventLaunch, ID: 3, Thread: 2}, {Kind: wire.EventWait, ID: stream, Thread: 2},
		{Kind: wire.EventWaited, ID: stream, Thread: 2}, {Kind: wire.EventLaunch, ID: 4, Thread: 3},
		{Kind: wire.EventCopied, Thread: 3}, {Kind: wire.EventGraph, ID: 5, Thread: 3},
		{Kind: wire.EventGraph, ID: 5, Thread: 3}, {Kind: wire.EventWait, ID: context, Thread: 1},
		{Kind: wire.EventWaited, ID: context, Thread: 1}, {Kind: wire.EventLaunch, ID: 6, Thread: 1},
	} {
		e.At = int64(i)
		s.launches = append(s.launches, e)
	}
	all, suspects := s.record(12)
	fixture.Equal(t, len(all), 6, "launches before the crash:")
	fixture.EqualSlices(t, suspects, []Suspect{{"graph 00000005", "", 2}, {"kernel 00000002", "", 1}}, "suspects:")
}

// TestInFlight names what may not have ended, and a graph by the kernels in it, as far as the process says something sensible.
func TestInFlight(t *testing.T) {
	p := newProgram(1, 700, time.Now())
	fixture.Equal(t, InFlight(p.Traced, 9*second), "", "before the first launch")
	p.named(0, second, 7, "spin")
	p.named(1, second, 8, "_Z4gemmILi4EE")
	p.named(2, second, 9, "graph 6 4x00000007 1x00000008 x 9xzz 1")
	p.named(3, second, 10, "graph 9")
	p.note(3*second, wire.EventLaunch, 7, 1)
	p.note(4*second, wire.EventWaited, 1<<8|uint32(wire.WaitStream), 1)
	p.note(5*second, wire.EventLaunch, 8, 1)
	p.note(6*second, wire.EventGraph, 9, 1)
	p.note(6*second, wire.EventGraph, 9, 1)
	fixture.Equal(t, InFlight(p.Traced, 9*second), "in flight: gemm<4> or graph of 4 x spin, 1 x gemm<4>, 1 more", "two")
	p.note(7*second, wire.EventGraph, 10, 1)
	p.note(8*second, wire.EventLaunch, 9, 2) // whose kernel has the name of a graph
	fixture.Equal(t, InFlight(p.Traced, 9*second), "in flight: gemm<4>, graph 0000000a, graph 6 4x00000007 1x00000008 x 9xzz 1 "+
		"or another one", "four")
}

// TestAnXIDMayComeAfterTheEnd: a session that has ended is remembered for a moment, and no
// process that has its PID later is blamed.
func TestAnXIDMayComeAfterTheEnd(t *testing.T) {
	for after, want := range map[time.Duration]int{time.Second: 1, 2 * keepEnded: 0} {
		w := newWorld(t)
		p := newProgram(1, 700, time.Now())
		p.Ends = true
		w.Observe(p.Traced)
		w.now += int64(after)
		w.Kernel(xid(700, 13, exception))
		fixture.Equal(t, len(w.look()), want, "crashes by an XID %v after the end:", after)
	}
	for seen, want := range map[bool]uint64{true: 2, false: 1} { // a second session of the process
		w, p := newWorld(t), newProgram(1, 700, time.Now())
		p.Ends = true
		w.Observe(p.Traced)
		w.Kernel(xid(700, 13, exception))
		if seen {
			w.Observe(newProgram(2, 700, time.Now()).Traced)
		}
		w.now += second
		fixture.Equal(t, len(w.look()), 1, "crashes by an XID between two sessions:")
		fixture.Equal(t, len(w.sessions[want].record.XIDs), 1, "XIDs of the right session, the second one seen: %v", seen)
	}
	w := newWorld(t)
	w.Observe(newProgram(1, 700, time.Now()).Traced)
	w.Kernel(xid(700, 13, "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address"))
	fixture.Equal(t, len(w.look()), 0, "crashes by an XID of another one, while this was in the driver:")
	w = newWorld(t)
	w.Observe(newProgram(1, 700, time.Now().Add(time.Minute)).Traced)
	w.Kernel(xid(700, 13, exception))
	w.Observe(newProgram(1, 700, time.Now()).Traced)
	fixture.Equal(t, len(w.look()), 0, "crashes by an XID before the process:")
	w.Kernel(xid(702, 13, exception)) // one fault of another process can have many lines
	for range 2 * mostEarly {
		w.Kernel(xid(701, 13, exception))
	}
	fixture.AtMost(t, len(w.early), mostEarly, "XIDs of nobody:")
	w.Observe(newProgram(2, 701, time.Now()).Traced) // it was not seen before
	fixture.Equal(t, len(w.early), 2, "XIDs of others, one of which came before the process:")
	fixture.Equal(t, len(w.look()), 1, "crashes by an XID before the first look:")
}

// TestCrashesAreBounded has two users crash: the one who does so more often loses his oldest.
func TestCrashesAreBounded(t *testing.T) {
	w := newWorld(t)
	p := newProgram(0, 1000, time.Now())
	p.Ends = true
	p.fails(719, w.now)
	for i := range uint64(mostRecords + 10) {
		p.Session, p.UID = i, 1000
		if i == 0 {
			p.UID = 1001
		}
		w.Observe(p.Traced)
		w.look()
		w.now += int64(keepEnded) + 1
	}
	fixture.Equal(t, len(w.Heads(0)), mostRecords, "crashes kept:")
	fixture.Equal(t, len(w.Heads(1001)), 1, "crashes kept of the user who had one:")
	files := fixture.Value(os.ReadDir(w.Dir))(t)
	fixture.Equal(t, len(files), mostRecords, "files:")
	for i := range uint64(2000) { // at a time
		p.Session = 1<<32 + i
		w.Observe(p.Traced)
	}
	fixture.AtMost(t, len(w.sessions), mostTaken, "sessions that ended:")
	n := 0
	for _, s := range w.sessions {
		if s.snapshot != nil {
			n++
		}
	}
	fixture.Equal(t, n, mostTaken/2, "snapshots of one user:")
	fixture.Equal(t, w.room(&session{record: Record{Head: Head{Party: "another"}}, at: 1}), true, "another user's crash has room:")
	fixture.AtMost(t, len(w.look()), mostWrites, "records at a time:")
}

// TestCrashesInARow has one user's processes crash within moments: each is recorded, though many snapshots are held.
func TestCrashesInARow(t *testing.T) {
	w := newWorld(t)
	for i := range uint64(2 * mostTaken) {
		ended := newProgram(1000+i, 1, time.Now()) // it just ends
		ended.Ends = true
		w.Observe(ended.Traced)
		p := newProgram(i, 1000+int(i), time.Now())
		p.Ends = true
		p.fails(719, w.now)
		w.Observe(p.Traced)
		w.look()
		w.now++
	}
	fixture.Equal(t, len(w.Heads(0)), 2*mostTaken, "crashes kept:")
}

// TestAScribbledTrace: a process that writes anything over its trace gets a record of bounded
// size, and nothing else happens.
func TestAScribbledTrace(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	w := newWorld(t)
	for i := range uint64(20) {
		p := newProgram(i, 700, time.Now())
		for place := range wire.Allocations {
			p.has(place, random.Uint64(), random.Uint64()>>(random.Uint32()%64), int64(random.Uint64()>>1), 0)
			p.named(place, int64(random.Uint32()), random.Uint32()%300, strings.Repeat("\x1b<x>", 15))
		}
		for n := range uint32(500) {
			p.note(99*second+int64(n), wire.EventKind(random.Uint32()%16), n%300, random.Uint32()%4096)
		}
		for range 1 << (i % 20) {
			memory := p.trace
			if random.Uint32()%2 == 0 {
				memory = p.crash
			}
			memory[random.IntN(len(memory))] = byte(random.Uint32())
		}
		p.fails(random.Uint32()|1, int64(random.Uint64()))
		w.Observe(p.Traced)
		w.Kernel(xid(700, 31, fmt.Sprintf(mmu, random.Uint32(), random.Uint32())))
		p.Ends = true
		w.Observe(p.Traced)
		for _, h := range w.look() {
			r := w.read(0, h.ID)
			var text strings.Builder
			fixture.Must(t, r.Text(&text))
			if strings.ContainsFunc(text.String(), func(c rune) bool { return c != '\n' && (c < ' ' || c > '~') }) {
				t.Errorf("the text of crash %d has controls", h.ID)
			}
			fixture.AtMost(t, text.Len(), mostRecord, "bytes of the text:")
		}
	}
	fixture.AtLeast(t, len(w.Heads(0)), 1, "crashes kept:")
}

// TestAFloodOfCrashesIsToldInALine has a user's programs crash again and again, under many UIDs and as owners of many jobs.
// The log and the journal tell the first ones and how many more there were, and all of another user. His record stays.
func TestAFloodOfCrashesIsToldInALine(t *testing.T) {
	w, told := newWorld(t), map[string][]Head{}
	end := w.now + 2*int64(toldWithin)
	for session := uint64(1); w.now < end; session++ {
		p := newProgram(session, int(session), time.Now())
		p.Party, p.Owner, p.UID = "mallory", fmt.Sprint("slurm:", session), uint32(100_000+session)
		if session == 1 || session == 100 {
			p.Party = "honest"
		}
		p.fails(719, w.now)
		p.Ends = true
		w.Observe(p.Traced)
		for _, h := range w.look() {
			told[h.Party] = append(told[h.Party], h)
		}
		w.now += int64(keepEnded)
	}
	all := told["mallory"]
	fixture.Need(t, len(all), 2*mostTold+1, "crashes of mallory that are told in two spans:")
	fixture.Contains(t, all[mostTold].Says, "more crashes of this user within 10m0s; the last one: ", "the line for the rest")
	fixture.Equal(t, len(told["honest"]), 2, "crashes of another user that are told:")
	fixture.If(t, w.Heads(0)[0].Party != "honest", "the records are %+v", w.Heads(0)[:2])
}

// Users whose sessions crashed with no clock, crashed and ended leave others' crashes their room, and their turn.
func TestCrashesOfOneOwnerHideNoOthers(t *testing.T) {
	w := newWorld(t)
	look := func() int {
		return len(w.Look(func(int) (string, string) { return "x", "w" }))
	}
	observe := func(session uint64, owner string, clock, ends bool) {
		p := newProgram(session, int(session), time.Now())
		if p.Party, p.Ends = owner, ends; !clock {
			clear(p.trace[64:104])
		}
		if !ends || owner == "honest" {
			p.fails(700, w.now-second-int64(session)*1e6) // the honest one first
		}
		w.Observe(p.Traced)
	}
	for session := range uint64(48) {
		observe(1+session, fmt.Sprint("mallory", session%6), session%2 == 0, session >= 24)
	}
	fixture.AtMost(t, look(), mostWrites, "records at a look")
	p := newProgram(1000, 9, time.Now())
	for p.Party = "mallory"; p.Session < 3*mostSessions; p.Session++ {
		w.Observe(p.Traced)
	}
	observe(100, "honest", true, false)
	observe(100, "honest", true, true)
	look()
	fixture.If(t, !slices.ContainsFunc(w.Heads(0), func(h Head) bool { return h.PID == 100 }), "the honest crash is not kept: %v", w.Heads(0))
	for session := range uint64(24) { // those without a clock are written once
		observe(1+session, fmt.Sprint("mallory", session%6), session%2 == 0, false)
	}
	for look() > 0 {
	}
	observe(2, "mallory", false, false)
	fixture.Equal(t, look(), 0, "records that are written again:")
}
