package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"gpusteward/internal/fixture"
)

// A message has the methods of every message.
type message interface {
	Append([]byte) []byte
	Decode([]byte)
}

// page and slotC mirror the page in C, as messages mirror theirs.
type slotC struct {
	Mode, Flags          uint32
	Turn, End, Used, Cap uint64
	InFlight, Share      uint32
	Link, Copy           uint64
	Processes, Slice     uint32
	Pace                 uint32
	_                    [52]byte
}

type pageC struct {
	Magic, Version     uint32
	Session, Heartbeat uint64
	Bell, Gated        uint32
	Suspended          uint32
	Timed              uint32
	_                  [88]byte
	Slot               [GPUs]slotC
}

type leasesC struct{ Idle [GPUs]uint64 }

type eventC struct {
	Ticks    uint64
	ID, What uint32
}

type communicatorC struct {
	ID                                              uint64
	Rank, Ranks                                     uint32
	Entered, At, Ended, Bytes, Measured, MeasuredNS uint64
	Op, GPU                                         uint32
	Begun, Unbegun                                  uint64
	Peer                                            [Peers]peerC
	Inside, Before, Reached, Unreached              uint32
}

type peerC struct {
	Rank           uint32
	Sent, Received uint16
}

type traceC struct {
	Head                               uint64
	_                                  [56]byte
	Version, Writing                   uint32
	FirstTicks, First, LastTicks, Last uint64
	Lost                               uint64
	Shared, Failed                     uint32
	FailedAt                           uint64
	Communicator                       [Communicators]communicatorC
	Event                              [EventsKept]eventC
}

type allocationC struct{ Address, Bytes, Made, Freed uint64 }

type kernelC struct {
	Since    uint64
	ID, Name uint32
}

type crashC struct {
	Unlisted, Unnamed uint64
	Allocation        [Allocations]allocationC
	Kernel            [Kernels]kernelC
	Names             [nameBytes]byte
}

type headerC struct {
	Magic        uint32
	Major, Minor uint8
	Type         uint16
	Length       uint32
	Flags        uint32
	Seq, Session uint64
}

var mirrors = map[string]any{
	"gs_header": headerC{}, "gs_hello": Hello{}, "gs_welcome": Welcome{}, "gs_memory": Memory{},
	"gs_acquire": Acquire{},
	"gs_usage":   Usage{}, "gs_notice": Notice{}, "gs_err": Err{}, "gs_slot": slotC{}, "gs_page": pageC{},
	"gs_leases": leasesC{}, "gs_event": eventC{}, "gs_communicator": communicatorC{}, "gs_peer": peerC{}, "gs_trace": traceC{},
	"gs_allocation": allocationC{}, "gs_kernel": kernelC{}, "gs_crash": crashC{},
}

// constants are the enumerators of wire.h and its numbers.
var constants = map[string]int{
	"GS_HELLO": int(TypeHello), "GS_WELCOME": int(TypeWelcome), "GS_RESUME": int(TypeResume), "GS_PING": int(TypePing),
	"GS_PONG": int(TypePong), "GS_RESERVE": int(TypeReserve), "GS_GRANT": int(TypeGrant), "GS_DENY": int(TypeDeny),
	"GS_COMMIT": int(TypeCommit), "GS_ABORT": int(TypeAbort), "GS_FREE": int(TypeFree), "GS_ACQUIRE": int(TypeAcquire),
	"GS_YIELD": int(TypeYield), "GS_USAGE": int(TypeUsage), "GS_NOTICE": int(TypeNotice),
	"GS_LIMITS_CHANGED": int(TypeLimitsChanged), "GS_BYE": int(TypeBye), "GS_ERR": int(TypeErr),
	"GS_STATS": int(TypeStats), "GS_STATS_REPLY": int(TypeStatsReply),
	"GS_DEVICE": int(KindDevice), "GS_MANAGED": int(KindManaged), "GS_ARRAY": int(KindArray), "GS_VMM": int(KindVMM),
	"GS_POOL": int(KindPool), "GS_GRAPH": int(KindGraph),
	"GS_SHARED_MANAGED": int(SharedManaged), "GS_SHARED_PROCESSES": int(SharedProcesses),
	"GS_SHARED_MULTICAST": int(SharedMulticast),
	"GS_IDLE":             int(WhyIdle), "GS_DRAINED": int(WhyDrained), "GS_UNDRAINED": int(WhyUndrained),
	"GS_E_VERSION": int(CodeVersion), "GS_E_FRAME": int(CodeFrame), "GS_E_STATE": int(CodeState),
	"GS_E_TENANT": int(CodeTenant), "GS_E_LIMIT": int(CodeLimit), "GS_E_GPU": int(CodeGPU),
	"GS_E_DENIED": int(CodeDenied),
	"GS_OPEN":     int(ModeOpen), "GS_RUN": int(ModeRun), "GS_PAUSE": int(ModePause), "GS_KILL": int(ModeKill),
	"GS_MAGIC": Magic, "GS_MAJOR": Major, "GS_MINOR": Minor, "GS_FRAME_MAX": FrameMax, "GS_GPUS": GPUs, "GS_CALLER_AT": CallerAt,
	"GS_BESIDE": int(Beside), "GS_HASTE": int(Haste),
	"GS_TRACE_AT": TraceAt, "GS_EVENTS_KEPT": EventsKept, "GS_BLOCK": eventsOfBlock,
	"GS_COMMUNICATORS": Communicators, "GS_PEERS": Peers,
	"GS_ALLOCATIONS": Allocations, "GS_KERNELS": Kernels, "GS_NAME_BYTES": nameBytes,
	"GS_GRAPHS_NAMED": graphsNamed, "GS_GRAPH_KERNELS": GraphKernels,
	"GS_EVENT_LAUNCH": int(EventLaunch), "GS_EVENT_GRAPH": int(EventGraph), "GS_EVENT_WAIT": int(EventWait),
	"GS_EVENT_WAITED": int(EventWaited), "GS_EVENT_COPY": int(EventCopy), "GS_EVENT_COPYING": int(EventCopying),
	"GS_EVENT_COPIED": int(EventCopied), "GS_EVENT_ALLOC": int(EventAlloc), "GS_EVENT_FREE": int(EventFree),
	"GS_EVENT_COLLECTIVE": int(EventCollective), "GS_EVENT_HELD": int(EventHeld),
	"GS_EVENT_RELEASED": int(EventReleased), "GS_EVENT_BUSY": int(EventBusy),
	"GS_EVENT_COLLECTED": int(EventCollected), "GS_EVENT_TIMED": int(EventTimed),
	"GS_EVENT_TOOK":  int(EventTook),
	"GS_WAIT_STREAM": int(WaitStream), "GS_WAIT_EVENT": int(WaitEvent), "GS_WAIT_CONTEXT": int(WaitContext),
	"GS_WAIT_QUEUE": int(WaitQueue),
	"GS_ALL_REDUCE": int(AllReduce), "GS_BROADCAST": int(Broadcast), "GS_REDUCE": int(Reduce),
	"GS_ALL_GATHER": int(AllGather), "GS_REDUCE_SCATTER": int(ReduceScatter), "GS_ALL_TO_ALL": int(AllToAll),
	"GS_GATHER": int(Gather), "GS_SCATTER": int(Scatter), "GS_SEND": int(Send), "GS_RECV": int(Recv),
	"GS_LEASE_OPEN": LeaseOpen - 1<<64, "GS_LEASE_MAX": LeaseMax,
}

var (
	structs     = regexp.MustCompile(`(?s)struct (gs_\w+) \{\n(.*?)\n\};`)
	enums       = regexp.MustCompile(`(?s)enum gs_\w+ \{(.*?)\};`)
	declaration = regexp.MustCompile(`(?m)^\s*(?:uint\w+|char|struct \w+) ([^;]+);`)
	remark      = regexp.MustCompile(`(?s)/\*.*?\*/`)
	enumerator  = regexp.MustCompile(`\bGS_\w+`)
	number      = regexp.MustCompile(`#define (GS_\w+) \S`)
	dimension   = regexp.MustCompile(`\[.*\]`)
)

// TestHeader compiles wire.h and compares the place and size of every field, and every number, with this package's.
func TestHeader(t *testing.T) {
	t.Parallel()
	header := fixture.Value(filepath.Abs("../../enforcer/hook/src/base/wire.h"))(t)
	source := fixture.Value(os.ReadFile(header))(t)
	plain := remark.ReplaceAllString(string(source), "")
	var program, want strings.Builder
	fmt.Fprintf(&program, "#include <stddef.h>\n#include <stdio.h>\n#include %q\nint main(void) {\n", header)
	found := structs.FindAllStringSubmatch(plain, -1)
	fixture.If(t, len(found) != len(mirrors), "wire.h has %d structs, the test knows %d", len(found), len(mirrors))
	for _, s := range found {
		layout(t, &program, &want, s[1], s[2])
	}
	names := number.FindAllStringSubmatch(plain, -1)
	for _, e := range enums.FindAllStringSubmatch(plain, -1) {
		for _, name := range enumerator.FindAllString(e[1], -1) {
			names = append(names, []string{"", name})
		}
	}
	fixture.If(t, len(names) != len(constants), "wire.h has %d numbers, the test knows %d", len(names), len(constants))
	for _, n := range names {
		value, known := constants[n[1]]
		if !known {
			t.Errorf("%s is not known", n[1])
		}
		fmt.Fprintf(&program, "printf(\"%s %%ld\\n\", (long)%s);\n", n[1], n[1])
		fmt.Fprintf(&want, "%s %d\n", n[1], value)
	}
	program.WriteString("return 0; }\n")
	if got := runC(t, program.String()); got != want.String() {
		for i, line := range strings.Split(got, "\n") {
			if w := strings.Split(want.String(), "\n"); i < len(w) && w[i] != line {
				t.Errorf("C has %q, Go %q", line, w[i])
			}
		}
	}
}

// layout adds to program code that prints the fields of the C struct, and to want their expected values.
func layout(t *testing.T, program, want *strings.Builder, name, body string) {
	t.Helper()
	mirror, known := mirrors[name]
	if !known {
		t.Errorf("struct %s is not known", name)
		return
	}
	typ, index := reflect.TypeOf(mirror), 0
	for _, d := range declaration.FindAllStringSubmatch(body, -1) {
		for _, field := range strings.Split(d[1], ",") {
			field = dimension.ReplaceAllString(strings.TrimSpace(field), "")
			fmt.Fprintf(program, "printf(\"%s.%s %%zu %%zu\\n\", offsetof(struct %s, %s), sizeof(((struct %s "+
				"*)0)->%s));\n",
				name, field, name, field, name, field)
			if index < typ.NumField() {
				f := typ.Field(index)
				fmt.Fprintf(want, "%s.%s %d %d\n", name, field, f.Offset, f.Type.Size())
			}
			index++
		}
	}
	if index != typ.NumField() {
		t.Errorf("struct %s has %d fields in C, %d in Go", name, index, typ.NumField())
	}
	fmt.Fprintf(program, "printf(\"%s %%zu\\n\", sizeof(struct %s));\n", name, name)
	fmt.Fprintf(want, "%s %d\n", name, typ.Size())
}

func runC(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	file, binary := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	fixture.Must(t, os.WriteFile(file, []byte(source), 0o600))
	out, err := exec.Command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", binary, file).CombinedOutput()
	fixture.Stop(t, err != nil, "gcc: %v\n%s", err, out)
	return string(fixture.Value(exec.Command(binary).Output())(t))
}

// fill fills v with random bytes, its blank fields too.
func fill[M any](r *rand.Rand, v *M) []byte {
	memory := unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
	for i := range memory {
		memory[i] = byte(r.Uint32())
	}
	return memory
}

// checkCodec compares what Append writes with the memory of the struct, whose layout is that of C, and reads it back.
func checkCodec[M any, P interface {
	*M
	message
}](t *testing.T, r *rand.Rand) {
	t.Helper()
	var m, back, blank M
	memory := fill(r, &m)
	encoded := P(&m).Append(nil)
	P(&back).Decode(encoded)
	fixture.Stop(t, !sameFields(m, back), "%T: %+v came back as %+v", m, m, back)
	// Reserved bytes are sent as 0, even if memory has other values.
	typ := reflect.TypeOf(blank)
	for i := range typ.NumField() {
		if f := typ.Field(i); f.Name == "_" {
			clear(memory[f.Offset : f.Offset+f.Type.Size()])
		}
	}
	fixture.Stop(t, !bytes.Equal(encoded, memory), "%T: encoded as\n%x, in memory it is\n%x", m, encoded, memory)
}

func sameFields(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if x.Type().Field(i).Name != "_" && !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return false
		}
	}
	return true
}

func TestCodecIsTheStructInMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		checkCodec[Hello](t, r)
		checkCodec[Welcome](t, r)
		checkCodec[Memory](t, r)
		checkCodec[Acquire](t, r)
		checkCodec[Usage](t, r)
		checkCodec[Notice](t, r)
		checkCodec[Err](t, r)
	}
}

// TestTraceLayout compares the places of a trace's parts with the struct in C,
// which TestHeader has compared with its mirror.
func TestTraceLayout(t *testing.T) {
	var m traceC
	var c crashC
	for name, place := range map[string][2]uintptr{
		"TraceSize":         {TraceSize, unsafe.Sizeof(m)},
		"the clock":         {traceClock, unsafe.Offsetof(m.Version)},
		"the communicators": {traceCommunicator, unsafe.Offsetof(m.Communicator)},
		"the events":        {traceEvents, unsafe.Offsetof(m.Event)},
		"lost collectives":  {traceClock + 40, unsafe.Offsetof(m.Lost)},
		"shared memory":     {traceClock + 48, unsafe.Offsetof(m.Shared)},
		"a fault":           {traceClock + 52, unsafe.Offsetof(m.Failed)},
		"CrashSize":         {CrashSize, unsafe.Sizeof(c)},
		"the allocations":   {crashAllocations, unsafe.Offsetof(c.Allocation)},
		"the kernels":       {crashKernels, unsafe.Offsetof(c.Kernel)},
		"the names":         {crashNames, unsafe.Offsetof(c.Names)},
		"an allocation":     {allocationSize, unsafe.Sizeof(c.Allocation[0])},
		"a kernel":          {kernelSize, unsafe.Sizeof(c.Kernel[0])},
		"a communicator":    {communicatorSize, unsafe.Sizeof(m.Communicator[0])},
		"an event":          {eventSize, unsafe.Sizeof(m.Event[0])},
	} {
		if place[0] != place[1] {
			t.Errorf("%s: %d, in C %d", name, place[0], place[1])
		}
	}
}
