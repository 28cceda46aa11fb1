package crash

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gpusteward/enforcer/symbol"
	"gpusteward/internal/wire"
)

// Bounds of a record: it has less than mostRecord bytes as JSON.
const (
	mostLaunches    = 200
	mostAllocations = 200
	mostXIDs        = 8
	mostSuspects    = 16
	mostText        = 256 // bytes of a line of the kernel
)

// A Head is a crash in one line.
type Head struct {
	ID       int       `json:"id"`
	Time     time.Time `json:"time"`
	PID      int       `json:"pid"`
	UID      uint32    `json:"uid"`             // of the process; the user may read the record
	Party    string    `json:"party,omitempty"` // see broker.Traced: who has many records, or many are told of
	Comm     string    `json:"comm,omitempty"`
	Tenant   string    `json:"tenant"`
	Workload string    `json:"workload,omitempty"`
	Says     string    `json:"says"` // what happened
}

// A Record is all that is kept of a crash. It has neither content of memory nor arguments.
type Record struct {
	Head
	Error       uint32       `json:"error,omitempty"` // CUresult of the first fault that the program was told
	XIDs        []XID        `json:"xids,omitempty"`  // that name the process
	Suspects    []Suspect    `json:"suspects"`        // kernels that may not have ended, the last launched first
	Launches    []Launch     `json:"launches"`        // the last ones, in the order of time
	Allocations []Allocation `json:"allocations"`     // that were made or freed last, the latest first
	// What the process had more than the record can tell.
	Unlisted uint64 `json:"unlisted_allocations,omitempty"`
	Unnamed  uint64 `json:"unnamed_kernels,omitempty"`
}

// An XID is a fault that the driver logged.
type XID struct {
	Time    time.Time `json:"time"`
	Code    int       `json:"code"`
	GPU     string    `json:"gpu"` // PCI address, as the driver writes it
	Text    string    `json:"text"`
	Address string    `json:"address,omitempty"` // of memory, which the text names
	Says    string    `json:"says,omitempty"`    // where that lies
}

// A Suspect is a kernel or a graph in its launches that may not have ended.
type Suspect struct {
	Kernel   string `json:"kernel"`
	GPU      string `json:"gpu,omitempty"` // UUID
	Launches int    `json:"launches"`
}

// A Launch is one of a kernel or a graph.
type Launch struct {
	Before  float64 `json:"before_seconds"`
	Kernel  string  `json:"kernel"` // name as the compiler wrote it, or a number for one without a name
	GPU     string  `json:"gpu,omitempty"`
	Thread  uint16  `json:"thread"` // place of the thread in the process
	Suspect bool    `json:"suspect,omitempty"`
}

// An Allocation is GPU memory that the program had.
type Allocation struct {
	Address string   `json:"address"`
	Bytes   uint64   `json:"bytes"`
	Made    float64  `json:"made_before_seconds"`
	Freed   *float64 `json:"freed_before_seconds,omitempty"` // nil: it was there
}

// faultedAt finds the address in the text of an XID 31, which the driver writes with an
// underscore between the halves: "faulted @ 0x7f3c_1a000000".
var faultedAt = regexp.MustCompile(`\bfaulted @ 0x([0-9a-f]{1,8})_([0-9a-f]{8})\b`)

// addressIn returns the address of memory that the text of an XID names.
func addressIn(text string) (address uint64, ok bool) {
	m := faultedAt.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	address, err := strconv.ParseUint(m[1]+m[2], 16, 64)
	return address, err == nil
}

// A snapshot is what a process had noted when it was looked at, without names that the process
// could change later.
type snapshot struct {
	timed       bool         // the trace's clock is known, and with it the launches
	launches    []wire.Event // and the ends of waits before them
	names       map[launched]string
	gpus        []string
	allocations []wire.Allocation
	listed      bool // the hook tells allocations
	unlisted    uint64
	unnamed     uint64
}

// A launched is a kernel or a graph of a process.
type launched struct {
	kind wire.EventKind
	id   uint32
}

// fill completes the record of a crash at a time (CLOCK_MONOTONIC, ns).
func (r *Record) fill(s *snapshot, at int64) {
	r.Unlisted, r.Unnamed = s.unlisted, s.unnamed
	r.Launches, r.Suspects = s.record(at)
	before := func(t int64) float64 { return time.Duration(at - t).Seconds() }
	for i := range s.allocations {
		a := &s.allocations[i]
		if a.Made > at {
			continue
		}
		one := Allocation{Address: fmt.Sprintf("%#x", a.Address), Bytes: a.Bytes, Made: before(a.Made)}
		if a.Freed != 0 && a.Freed <= at {
			freed := before(a.Freed)
			one.Freed = &freed
		}
		r.Allocations = append(r.Allocations, one)
	}
	last := func(a Allocation) float64 {
		if a.Freed != nil {
			return *a.Freed
		}
		return a.Made
	}
	slices.SortFunc(r.Allocations, func(a, b Allocation) int { return cmp.Compare(last(a), last(b)) })
	r.Allocations = r.Allocations[:min(len(r.Allocations), mostAllocations)]
	for i := range r.XIDs {
		x := &r.XIDs[i]
		address, ok := addressIn(x.Text)
		if !ok {
			continue
		}
		x.Address = fmt.Sprintf("%#x", address)
		if s.listed {
			x.Says = locate(address, at, s.allocations, s.unlisted)
		}
	}
	r.Says = r.says()
}

// An ending tells which launches had ended by a time for certain: those before the last wait of their thread that
// had ended by then, and those before the last wait for a whole GPU.
type ending struct {
	waited map[uint16]int64
	whole  int64
}

func endings(all []wire.Event, at int64) ending {
	ended := ending{waited: map[uint16]int64{}}
	began := int64(0) // of the last wait for a whole GPU
	for _, e := range all {
		switch {
		case e.At >= at:
		case e.Kind == wire.EventWait && e.ID == uint32(wire.WaitContext):
			began = e.At
		case e.Kind == wire.EventWaited && e.ID == uint32(wire.WaitContext):
			ended.whole, ended.waited[e.Thread] = began, e.At
		case e.Kind == wire.EventWaited && e.ID != uint32(wire.WaitQueue), e.Kind == wire.EventCopied:
			ended.waited[e.Thread] = e.At
		}
	}
	return ended
}

// mayRun reports whether what was launched may not have ended.
func (s ending) mayRun(e wire.Event) bool { return e.At >= max(s.waited[e.Thread], s.whole) }

// record returns the last launches before a time, and which of them may not have ended.
func (s *snapshot) record(at int64) (all []Launch, suspects []Suspect) {
	ended := endings(s.launches, at)
	for _, e := range s.launches {
		if !launches(e) || e.At >= at {
			continue
		}
		l := Launch{Before: time.Duration(at - e.At).Seconds(), Thread: e.Thread, Kernel: s.name(e),
			Suspect: ended.mayRun(e)}
		if int(e.GPU) < len(s.gpus) {
			l.GPU = s.gpus[e.GPU]
		}
		all = append(all, l)
	}
	for _, l := range slices.Backward(all) {
		i := slices.IndexFunc(suspects, func(s Suspect) bool { return s.Kernel == l.Kernel && s.GPU == l.GPU })
		switch {
		case l.Suspect && i < 0 && len(suspects) < mostSuspects:
			suspects = append(suspects, Suspect{l.Kernel, l.GPU, 1})
		case l.Suspect && i >= 0:
			suspects[i].Launches++
		}
	}
	return all[max(0, len(all)-mostLaunches):], suspects
}

// name returns the name of what was launched.
func (s *snapshot) name(e wire.Event) string {
	return cmp.Or(s.names[launched{e.Kind, e.ID}], wire.Unnamed(e.Kind, e.ID))
}

// faults are the errors of the driver that end a context.
var faults = map[uint32]string{214: "uncorrectable ECC error", 220: "uncorrectable NVLink error", 226: "contained error",
	700: "illegal address", 702: "launch timed out", 710: "assert", 714: "error of the hardware's stack",
	715: "illegal instruction", 716: "misaligned address", 717: "invalid address space", 718: "invalid program counter",
	719: "launch failed", 721: "leak of tensor memory"}

// says returns what happened, in one line.
func (r *Record) says() string {
	var what []string
	i := slices.IndexFunc(r.XIDs, func(x XID) bool { return x.Says != "" })
	switch {
	case i >= 0:
		what = append(what, fmt.Sprintf("XID %d: %s %s", r.XIDs[i].Code, r.XIDs[i].Address, r.XIDs[i].Says))
	case len(r.XIDs) > 0:
		what = append(what, fmt.Sprintf("XID %d", r.XIDs[0].Code))
	}
	if r.Error != 0 && i < 0 {
		what = append(what, fmt.Sprintf("CUDA error %d (%s)", r.Error, cmp.Or(faults[r.Error], "a fault")))
	}
	if n := len(r.Suspects); n > 0 {
		names := symbol.Short(r.Suspects[0].Kernel)
		if n > 1 {
			names += orOthers(n - 1)
		}
		what = append(what, "in flight: "+names)
	}
	return strings.Join(what, "; ")
}

// orOthers follows what may have been in flight if n more may have been.
func orOthers(n int) string {
	if n == 1 {
		return " or another one"
	}
	return fmt.Sprintf(" or one of %d others", n)
}

// Table writes the heads, one a line.
func Table(w io.Writer, all []Head) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTIME\tPID\tPROGRAM\tWORKLOAD\tWHAT")
	for _, h := range all {
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%s\t%s\n", h.ID, h.Time.Local().Format(time.DateTime), h.PID, cmp.Or(h.Comm, "-"),
			cmp.Or(h.Workload, "-"), h.Says)
	}
	return t.Flush()
}

// Text writes the record for people.
func (r *Record) Text(w io.Writer) error {
	fmt.Fprintf(w, "crash %d: %s\n%s (pid %d, uid %d), tenant %s, workload %s, %s\n", r.ID, r.Says, cmp.Or(r.Comm, "unknown"),
		r.PID, r.UID, r.Tenant, cmp.Or(r.Workload, "unknown"), r.Time.Local().Format(time.DateTime))
	if r.Error != 0 {
		fmt.Fprintf(w, "the driver returned error %d (%s)\n", r.Error, cmp.Or(faults[r.Error], "a fault"))
	}
	for _, x := range r.XIDs {
		fmt.Fprintf(w, "XID %d on %s: %s\n", x.Code, x.GPU, x.Text)
		if x.Says != "" {
			fmt.Fprintf(w, "  %s %s\n", x.Address, x.Says)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nin flight\nLAUNCHES\tGPU\tKERNEL")
	for _, s := range r.Suspects {
		fmt.Fprintf(t, "%d\t%s\t%s\n", s.Launches, cmp.Or(s.GPU, "-"), symbol.Short(s.Kernel))
	}
	fmt.Fprintln(t, "\nlast launches, * in flight\nBEFORE\tTHREAD\tGPU\tKERNEL")
	for _, l := range r.Launches {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s%s\n", ago(int64(l.Before*1e9)), l.Thread, cmp.Or(l.GPU, "-"),
			map[bool]string{true: "* "}[l.Suspect], symbol.Short(l.Kernel))
	}
	fmt.Fprintln(t, "\nlast allocations\nADDRESS\tSIZE\tMADE BEFORE\tFREED BEFORE")
	for _, a := range r.Allocations {
		freed := "-"
		if a.Freed != nil {
			freed = ago(int64(*a.Freed * 1e9))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", a.Address, bytes(a.Bytes), ago(int64(a.Made*1e9)), freed)
	}
	if r.Unlisted > 0 {
		fmt.Fprintf(t, "%d allocations are not known\n", r.Unlisted)
	}
	if r.Unnamed > 0 {
		fmt.Fprintf(t, "%d kernels have no known name\n", r.Unnamed)
	}
	return t.Flush()
}
