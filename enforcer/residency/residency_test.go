package residency

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

var testNow = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// at returns a workload of a tenant of its own that has been on GPU a for an hour, in use, at normal priority.
func at(name string, size uint64, edits ...func(*Workload)) Workload {
	w := Workload{Subject: audit.Subject{Tenant: "of " + name, Workload: name}, Since: testNow.Add(-time.Hour),
		Bytes: map[string]uint64{}, Priority: policy.PriorityNormal, Known: true}
	if size > 0 {
		w.Bytes["a"] = size * gib
	}
	for _, edit := range edits {
		edit(&w)
	}
	return w
}

// away returns a workload that has been on the host for a minute, and wants to come back.
func away(name string, size uint64, edits ...func(*Workload)) Workload {
	wants := func(w *Workload) { w.Phase, w.Wants = Suspended, true }
	return at(name, size, append([]func(*Workload){wants, since(time.Minute)}, edits...)...)
}

func since(d time.Duration) func(*Workload) { return func(w *Workload) { w.Since = testNow.Add(-d) } }
func idle(d time.Duration) func(*Workload)  { return func(w *Workload) { w.Idle = d } }
func is(p policy.Priority) func(*Workload)  { return func(w *Workload) { w.Priority = p } }
func tenant(name string) func(*Workload)    { return func(w *Workload) { w.Tenant = name } }
func moving(w *Workload)                    { w.Phase = Moving }
func fixed(w *Workload)                     { w.Fixed = true }
func unknown(w *Workload)                   { w.Known = false }
func says(word Word) func(*Workload)        { return func(w *Workload) { w.Says = word } }

func also(gpu string, size uint64) func(*Workload) {
	return func(w *Workload) { w.Bytes[gpu] = size * gib }
}

func promised(size uint64) func(*Workload) {
	return func(w *Workload) { w.Guaranteed = map[string]uint64{"a": size * gib} }
}

func gives(after time.Duration, keep uint64) func(*Workload) {
	return func(w *Workload) { w.Reclaim = policy.Reclaim{Idle: after, Keep: keep * gib} }
}

// asks returns a request of a workload, of a minute ago.
func asks(name string, size uint64, edits ...func(*Request)) Request {
	r := Request{audit.Subject{Tenant: "of " + name, Workload: name}, "a", size * gib, testNow.Add(-time.Minute),
		policy.PriorityNormal}
	for _, edit := range edits {
		edit(&r)
	}
	return r
}

// stateOf returns a state with three GPUs of 100 GiB, of which a and b are overcommitted, with a turn of a minute.
func stateOf(workloads []Workload, requests []Request) State {
	s := State{Now: testNow, Workloads: workloads, Requests: requests, GPUs: map[string]GPU{}}
	for _, uuid := range []string{"a", "b", "plain"} {
		g := GPU{Free: 100 * gib, Overcommit: uuid != "plain", Turn: time.Minute}
		for _, w := range workloads {
			if w.Phase != Suspended {
				g.Free -= w.Bytes[uuid]
			}
		}
		s.GPUs[uuid] = g
	}
	return s
}

// said returns orders as -NAME to suspend and +NAME to bring back.
func said(orders []Order) string {
	var all []string
	for _, o := range orders {
		sign := "+"
		if o.Suspend {
			sign = "-"
		}
		all = append(all, sign+o.Workload)
	}
	return strings.Join(all, " ")
}

func TestDecide(t *testing.T) {
	t.Parallel()
	const none = ""
	type works = []Workload
	type wants = []Request
	slow := func(s *State) { // a stay is 170 seconds
		s.GPUs["a"] = GPU{Free: s.GPUs["a"].Free, Overcommit: true, Turn: time.Minute, Move: 30 * time.Second}
	}
	before := func(s *State) { // the driver's reading is from before anybody came
		s.GPUs["a"] = GPU{Free: 100 * gib, Size: 100 * gib, Overcommit: true, Turn: time.Minute}
	}
	high, low := is(policy.PriorityHigh), is(policy.PriorityLow)
	for _, c := range []struct {
		what  string
		works works
		wants wants
		edit  func(*State)
		want  string
	}{
		// Those who do not use the GPU give way by their terms.
		{"idle for long enough", works{at("x", 9, idle(time.Minute), gives(time.Minute, 0))}, nil, nil, "-x"},
		{"not idle for long enough", works{at("x", 9, idle(time.Minute-1), gives(time.Minute, 0))}, nil, nil, none},
		{"no such terms", works{at("x", 9, idle(time.Minute))}, nil, nil, none},
		{"no more than may stay", works{at("x", 9, idle(time.Hour), gives(time.Minute, 9))}, nil, nil, none},
		{"more than may stay", works{at("x", 9, idle(time.Hour), gives(time.Minute, 8))}, nil, nil, "-x"},
		{"more on all GPUs than may stay", works{at("x", 9, also("b", 1), idle(time.Hour), gives(time.Minute, 9))}, nil,
			nil, "-x"},
		{"fixed", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0), fixed)}, nil, nil, none},
		{"says that it stays", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0), says(Stays))}, nil, nil, none},
		{"of unknown use", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0), unknown)}, nil, nil, none},
		{"on its way", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0), moving)}, nil, nil, none},
		{"brought back by an operator", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0), since(time.Minute-1))},
			nil, nil, none},
		{"it waits for memory", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0)), at("y", 90, since(0))},
			wants{asks("x", 9)}, nil, none},
		{"another waits for memory", works{at("x", 9, idle(time.Hour), gives(time.Minute, 0))}, wants{asks("y", 1)}, nil,
			"-x"},
		{"not overcommitted", works{at("x", 0, also("plain", 9), idle(time.Hour), gives(time.Minute, 0))}, nil, nil, "-x"},

		// Who wants to comes back when there is room.
		{"room", works{away("x", 9)}, nil, nil, "+x"},
		{"no wish", works{away("x", 9, func(w *Workload) { w.Wants = false })}, nil, nil, none},
		{"a wish of one that is there", works{at("x", 9, func(w *Workload) { w.Wants = true })}, nil, nil, none},
		{"no room on one of its GPUs", works{away("x", 9, also("plain", 9)), at("y", 0, also("plain", 92))}, nil, nil,
			none},
		{"room with nothing to spare", works{away("x", 50), at("y", 50, since(0))}, nil, nil, none},
		{"room with just enough to spare", works{away("x", 50), at("y", 50, since(0), func(w *Workload) {
			w.Bytes["a"] -= Spare
		})}, nil, nil, "+x"},
		{"nobody else to spare for", works{away("x", 100)}, nil, nil, "+x"},
		{"another in the place of all", works{away("x", 100), at("y", 1)}, nil, nil, "-y"},
		{"one that just got what it waited for", works{at("x", 50), away("y", 40, since(0))}, wants{asks("x", 20)}, nil,
			none},
		{"one that waits for what it does not get", works{at("x", 50), away("y", 60)}, wants{asks("x", 80)}, nil, "-x"},
		{"the room of one on its way there", works{away("x", 60), at("y", 60, moving)}, nil, before, none},
		{"the room of one that just came", works{away("x", 60), at("y", 60, since(time.Second))}, nil, before, none},
		{"room beside one that just came", works{away("x", 39), at("y", 60, since(time.Second))}, nil, before, "+x"},
		{"room for one of two", works{away("x", 60), away("y", 60, since(time.Hour))}, nil, nil, "+y"},
		{"room for both", works{away("x", 40), away("y", 40, since(time.Hour))}, nil, nil, "+y +x"},
		{"room by the name", works{away("y", 60), away("x", 60)}, nil, nil, "+x"},
		{"room for a request", works{away("x", 60)}, wants{asks("y", 60, func(r *Request) {
			r.Priority = policy.PriorityHigh
		})}, nil, none},
		{"another GPU", works{away("x", 9), at("y", 0, also("b", 100), since(0))}, nil, nil, "+x"},

		// On overcommitted GPUs, those that had their turn give way.
		{"a turn is over", works{at("x", 60), away("y", 60)}, nil, nil, "-x"},
		{"a turn is just over", works{at("x", 60, since(time.Minute)), away("y", 60)}, nil, nil, "-x"},
		{"a turn is not over", works{at("x", 60, since(time.Minute-1)), away("y", 60)}, nil, nil, none},
		{"a turn is not over, though it is idle", works{at("x", 60, since(time.Minute-1), idle(time.Hour)),
			away("y", 60)}, nil, nil, none},
		{"a turn is longer than slow moves", works{at("x", 60, since(169*time.Second)), away("y", 60)}, nil, slow, none},
		{"a turn is over after slow moves", works{at("x", 60, since(171*time.Second)), away("y", 60)}, nil, slow, "-x"},
		{"low priority waits for normal", works{at("x", 60), away("y", 60, low, since(time.Hour-1))}, nil, nil, none},
		{"low priority does not wait for ever", works{at("x", 60), away("y", 60, low, since(time.Hour))}, nil, nil, "-x"},
		{"low priority waits for high", works{at("x", 60, high), away("y", 60, low, since(24*time.Hour))}, nil, nil, none},
		{"priority idle waits for all others", works{at("x", 60, low), away("y", 60, is(policy.PriorityIdle),
			since(24*time.Hour))}, nil, nil, none},
		{"low priority comes after normal", works{at("x", 60), away("y", 60, low, since(time.Hour-1)),
			away("z", 60, since(0))}, nil, nil, "-x"},
		{"a request", works{at("x", 60)}, wants{asks("y", 41)}, nil, "-x"},
		{"a request with nothing to spare", works{at("x", 60)}, wants{asks("y", 40)}, nil, none},
		{"a request of its own", works{at("x", 60)}, wants{asks("x", 41)}, nil, none},
		{"a request, with another of its own", works{at("x", 40), at("y", 40)}, wants{asks("x", 41)}, nil, "-y"},
		{"not overcommitted without room", works{at("x", 0, also("plain", 60)), away("y", 0, also("plain", 60))}, nil,
			nil, none},
		{"nothing on a GPU that is not overcommitted", works{at("x", 60, also("plain", 0)), away("y", 60)}, nil, nil,
			"-x"},
		{"a turn is not over, and nothing on other GPUs", works{at("x", 60, since(0), also("b", 0), also("plain", 0)),
			away("y", 60)}, nil, nil, none},
		{"also on a GPU that is not overcommitted", works{at("x", 60, also("plain", 60)), away("y", 60)}, nil, nil, none},
		{"nobody goes in vain", works{at("x", 40), at("y", 40, fixed), away("z", 70)}, nil, nil, none},
		{"nobody goes for another GPU", works{at("x", 0, also("b", 60)), at("y", 60), away("z", 60)}, nil, nil, "-y"},
		{"nobody goes needlessly", works{at("x", 10, since(2*time.Hour)), at("y", 60), away("z", 60)}, nil, nil, "-y"},
		{"no more go than must", works{at("x", 40, since(2*time.Hour)), at("y", 40), away("z", 50)}, nil, nil, "-x"},
		{"all go that must", works{at("x", 40, since(2*time.Hour)), at("y", 40), away("z", 70)}, nil, nil, "-x -y"},
		{"fixed, and another", works{at("x", 40, since(2*time.Hour), fixed), at("y", 40), away("z", 50)}, nil, nil, "-y"},

		// The order in which they go.
		{"the longest stay", works{at("x", 40), at("y", 40, since(2*time.Hour)), away("z", 50)}, nil, nil, "-y"},
		{"the lowest priority", works{at("x", 40, low), at("y", 40, since(2*time.Hour)), away("z", 50)}, nil, nil, "-x"},
		{"the longest idle", works{at("x", 40, low), at("y", 40, idle(time.Second)), away("z", 50)}, nil, nil, "-y"},
		{"the longer idle", works{at("x", 40, idle(2*time.Second)), at("y", 40, idle(3*time.Second)), away("z", 50)}, nil,
			nil, "-y"},
		{"idle for no second", works{at("x", 40, low), at("y", 40, idle(time.Second-1)), away("z", 50)}, nil, nil, "-x"},
		{"idle as far as is known", works{at("x", 40, low), at("y", 40, idle(time.Hour), unknown), away("z", 50)}, nil,
			nil, "-x"},
		{"by name", works{at("y", 40), at("x", 40), away("z", 50)}, nil, nil, "-x"},

		// Priority.
		{"higher priority", works{at("x", 60, high), away("y", 60)}, nil, nil, none},
		{"higher priority, idle", works{at("x", 60, high, idle(time.Minute)), away("y", 60)}, nil, nil, "-x"},
		{"higher priority, hardly idle", works{at("x", 60, high, idle(time.Minute-1)), away("y", 60)}, nil, nil, none},
		{"higher priority, of unknown use", works{at("x", 60, high, idle(time.Hour), unknown), away("y", 60)}, nil, nil,
			none},
		{"lower priority", works{at("x", 60), away("y", 60, high)}, nil, nil, "-x"},
		{"a claim of higher priority", works{away("x", 60, high), away("y", 60, since(time.Hour))}, nil, nil, "+x"},

		// Guarantees.
		{"within its guarantee", works{at("x", 60, promised(60)), away("y", 60)}, nil, nil, none},
		{"beyond its guarantee", works{at("x", 60, promised(59)), away("y", 60)}, nil, nil, "-x"},
		{"within its guarantee, idle", works{at("x", 60, promised(60), idle(time.Minute)), away("y", 60)}, nil, nil, "-x"},
		{"within its guarantee, and a claim of high priority", works{at("x", 60, promised(60)), away("y", 60, high)}, nil,
			nil, none},
		{"says that it stays", works{at("x", 60, says(Stays))}, wants{asks("y", 60)}, nil, "-x"},
		{"says that it stays, idle within its guarantee", works{at("x", 60, says(Stays), promised(60), idle(time.Hour)),
			away("y", 60)}, nil, nil, none},
		{"says that it shares", works{at("x", 60, says(Shares), idle(time.Hour)), away("y", 60)}, nil, nil, none},
		{"says that it shares, and a claim of high priority", works{at("x", 60, says(Shares)), away("y", 60, high)}, nil,
			nil, "-x"},
		{"says that it stays, and others say nothing", works{at("x", 60, says(Stays), idle(time.Hour)), at("z", 40),
			away("y", 30)}, nil, nil, "-z"},
		{"two within a guarantee", works{at("x", 30, promised(60), tenant("t")), at("y", 30, promised(60), tenant("t")),
			away("z", 60)}, nil, nil, none},
		{"two beyond a guarantee together", works{at("x", 30, promised(40), tenant("t")),
			at("y", 30, promised(40), tenant("t")), away("z", 60)}, nil, nil, "-x"},
		{"two of which one may go", works{at("x", 30, promised(40), tenant("t")),
			at("y", 30, promised(40), tenant("t")), away("z", 90)}, nil, nil, none},
		{"another is on the host", works{at("x", 30, promised(40), tenant("t")),
			away("y", 30, promised(40), tenant("t"), func(w *Workload) { w.Wants = false }), away("z", 90)}, nil, nil, none},
		{"within its guarantee on another GPU", works{at("x", 60, also("b", 9), func(w *Workload) {
			w.Guaranteed = map[string]uint64{"b": 9 * gib}
		}), away("y", 60)}, nil, nil, none},

		// Several GPUs.
		{"one goes from two GPUs", works{at("x", 60, also("b", 60)), away("y", 60)}, nil, nil, "-x"},
		{"one goes for two GPUs", works{at("x", 60, also("b", 60)), away("y", 60, also("b", 60))}, nil, nil, "-x"},
		{"two go for two GPUs", works{at("x", 60), at("y", 0, also("b", 60)), away("z", 60, also("b", 60))}, nil, nil,
			"-x -y"},
		{"only one of two can go", works{at("x", 60), at("y", 0, also("b", 60), since(0)), away("z", 60, also("b", 60))},
			nil, nil, none},
		{"its turn on its other GPU is not over", works{at("x", 60, also("b", 9)), away("y", 60)}, nil, func(s *State) {
			s.GPUs["b"] = GPU{Free: 91 * gib, Overcommit: true, Turn: 2 * time.Hour}
		}, none},

		// One claim after the other.
		{"a smaller claim waits for a larger one", works{at("x", 60, since(0)), away("y", 60), away("z", 9, since(0))},
			nil, nil, none},
		{"a smaller request does not make others go", works{at("x", 60, since(0)), at("u", 30), away("y", 90)},
			wants{asks("z", 20, func(r *Request) { r.Since = testNow })}, nil, none},
		{"a smaller claim comes before", works{at("x", 60, since(0)), away("y", 60), away("z", 9, since(time.Hour))}, nil,
			nil, "+z"},
		{"a smaller claim on another GPU", works{at("x", 60, since(0)), away("y", 60),
			away("z", 0, also("b", 9), since(0))}, nil, nil, "+z"},
		{"a smaller claim on another GPU, after one that waits", works{at("x", 60, since(0)), away("y", 60),
			away("u", 9, since(time.Second)), away("z", 0, also("b", 9), since(0))}, nil, nil, "+z"},
		{"a smaller claim on one of several GPUs", works{at("x", 60, since(0)), away("y", 60, also("b", 1)),
			away("z", 0, also("b", 9), since(0))}, nil, nil, none},
		{"a larger one waits for those that never yield", works{at("x", 60, high), away("y", 60), away("z", 9, since(0))},
			nil, nil, "+z"},
		{"a smaller one makes another go where too few yield for a larger one", works{at("x", 40), at("u", 40, fixed),
			away("y", 70), away("z", 30, since(0))}, nil, nil, "-x"},
		{"a larger one waits where nobody yields", works{at("x", 0, also("plain", 60)), away("y", 0, also("plain", 60)),
			away("z", 0, also("plain", 9), since(0))}, nil, nil, none},
		{"its room is on its way", works{at("x", 30, moving), at("u", 60), away("y", 60), away("z", 1, since(0))}, nil,
			nil, none},
		{"another is on its way on another GPU", works{at("x", 0, also("b", 30), moving), at("u", 60), away("y", 60)}, nil,
			nil, "-u"},
		{"an idle one just went", works{at("x", 30, idle(time.Hour), gives(time.Minute, 0)), at("u", 60), away("y", 60)},
			nil, nil, "-x"},
		{"a request of one that has to go", works{at("x", 60)}, wants{asks("y", 60), asks("x", 40, func(r *Request) {
			r.Since = testNow
		})}, nil, "-x"},
		{"a request of one on the host", works{at("x", 60), away("y", 90, func(w *Workload) { w.Wants = false })},
			wants{asks("y", 60)}, nil, none},
		{"a request of one on its way", works{at("x", 60), at("y", 30, moving)}, wants{asks("y", 60)}, nil, none},
		{"two claims make one go each", works{at("x", 60), at("y", 0, also("b", 60)), away("u", 60),
			away("z", 0, also("b", 60))}, nil, nil, "-x -y"},
		{"a GPU that is unknown", works{away("x", 0, also("?", 1))}, nil, nil, none},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := stateOf(c.works, c.wants)
			if c.edit != nil {
				c.edit(&s)
			}
			fixture.Equal(t, said(Decide(s)), c.want, "it orders")
			slices.Reverse(s.Workloads)
			fixture.Equal(t, said(Decide(s)), c.want, "backwards, it orders")
		})
	}
}

// Orders say who needs the memory, and what of.
func TestWhy(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]State{
		"it held 9 GiB and did not use the GPU for 1h0m0s": stateOf([]Workload{
			at("x", 9, idle(time.Hour), gives(time.Minute, 0))}, nil),
		"it uses the GPU again": stateOf([]Workload{away("x", 9)}, nil),
		"y of tenant of y needs its 61 GiB back on an overcommitted GPU, and this workload has had its turn": stateOf(
			[]Workload{at("x", 60), away("y", 60, also("b", 1))}, nil),
		"y of tenant of y needs 50 GiB of an overcommitted GPU, which this workload did not use for 1s": stateOf(
			[]Workload{at("x", 60, idle(time.Second))}, []Request{asks("y", 50)}),
		"y of tenant of y needs 51 GiB of an overcommitted GPU, and this workload has had its turn": stateOf(
			[]Workload{at("x", 60, idle(time.Hour), unknown)}, []Request{asks("y", 51)}),
	} {
		got := Decide(s)
		fixture.If(t, len(got) != 1 || got[0].Why != want, "%v: want one order: %s", got, want)
	}
}

// randomState returns a state of workloads and requests on a few GPUs.
func randomState(r *rand.Rand) State {
	var works []Workload
	var wants []Request
	free := map[string]uint64{"a": 100, "b": 100, "plain": 100}
	for i := range r.IntN(12) {
		w := at(fmt.Sprint(i), 0, tenant(fmt.Sprint(r.IntN(4))), idle(time.Duration(r.IntN(200))*time.Second),
			since(time.Duration(r.IntN(200))*time.Second), is(policy.Priority(r.IntN(5))),
			gives(time.Minute, uint64(r.IntN(30))))
		w.Phase, w.Known, w.Fixed, w.Wants = Phase(r.IntN(3)), r.IntN(4) > 0, r.IntN(8) == 0, r.IntN(2) == 0
		w.Guaranteed = map[string]uint64{"a": uint64(r.IntN(50)) * gib}
		for _, uuid := range []string{"a", "b", "plain"} {
			if n := uint64(1 + r.IntN(60)); r.IntN(2) == 0 && (w.Phase == Suspended || n <= free[uuid]) {
				w.Bytes[uuid] = n * gib
				if w.Phase != Suspended {
					free[uuid] -= n
				}
			}
		}
		if len(w.Bytes) == 0 {
			continue
		}
		works = append(works, w)
		for range max(0, r.IntN(6)-2) {
			q := asks(fmt.Sprint(i), uint64(1+r.IntN(60)))
			q.Tenant, q.GPU = w.Tenant, []string{"a", "b", "plain"}[r.IntN(3)]
			wants = append(wants, q)
		}
	}
	return stateOf(works, wants)
}

// obey returns the state when orders were carried out.
func (s State) obey(orders []Order) State {
	s.Workloads, s.GPUs = slices.Clone(s.Workloads), maps.Clone(s.GPUs)
	for _, o := range orders {
		i := slices.IndexFunc(s.Workloads, func(w Workload) bool { return w.Subject == o.Subject })
		w := &s.Workloads[i]
		w.Phase, w.Since, w.Wants = Resident, s.Now, false
		if o.Suspend {
			w.Phase = Suspended
		}
		for uuid, n := range w.Bytes {
			g := s.GPUs[uuid]
			if g.Free -= n; o.Suspend {
				g.Free += 2 * n
			}
			s.GPUs[uuid] = g
		}
	}
	return s
}

// checkVictims checks that those who give way for others have had their turn on
// overcommitted GPUs, and that the others have the room then.
func checkVictims(t *testing.T, s State, orders []Order) {
	after := s.obey(orders)
	for _, o := range orders {
		name, _, is := strings.Cut(o.Why, " of tenant ")
		if !is {
			continue
		}
		w := s.Workloads[slices.IndexFunc(s.Workloads, func(w Workload) bool { return w.Subject == o.Subject })]
		fixture.Stop(t, w.Bytes["plain"] > 0 || s.Now.Sub(w.Since) < time.Minute, "%+v: %+v", s, o)
		served := slices.ContainsFunc(s.Requests, func(r Request) bool {
			return r.Workload == name && r.Bytes <= after.GPUs[r.GPU].Free
		})
		for _, next := range Decide(after) {
			served = served || next.Workload == name && !next.Suspend
		}
		fixture.Stop(t, !served, "%+v: %v in vain", s, orders)
	}
}

// Whatever the state, orders are possible, agree with each other, and do not
// depend on the order of what they are made from.
func TestOrdersArePossible(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	suspended, back := 0, 0
	for range 20000 {
		s := randomState(r)
		orders := Decide(s)
		r.Shuffle(len(s.Workloads), reflect.Swapper(s.Workloads))
		r.Shuffle(len(s.Requests), reflect.Swapper(s.Requests))
		again := Decide(s)
		fixture.Stop(t, !reflect.DeepEqual(orders, again), "%+v: %v, and then %v", s, orders, again)
		works, seen := map[audit.Subject]Workload{}, map[audit.Subject]bool{}
		for _, w := range s.Workloads {
			works[w.Subject] = w
		}
		free := map[string]uint64{}
		for uuid, g := range s.GPUs {
			free[uuid] = g.Free
		}
		for _, o := range orders {
			w := works[o.Subject]
			switch {
			case seen[o.Subject]:
				t.Fatalf("%+v: two orders for %s", s, o.Workload)
			case o.Suspend && (w.Phase != Resident || w.Fixed):
				t.Fatalf("%+v: it suspends %s", s, o.Workload)
			case !o.Suspend && (w.Phase != Suspended || !w.Wants):
				t.Fatalf("%+v: it brings %s back", s, o.Workload)
			case o.Suspend:
				suspended++
			default:
				back++
				for uuid, n := range w.Bytes {
					if n > free[uuid] {
						t.Fatalf("%+v: %v leave %s too little room on %s", s, orders, o.Workload, uuid)
					}
					free[uuid] -= n
				}
			}
			seen[o.Subject] = true
		}
		checkVictims(t, s, orders)
	}
	fixture.If(t, suspended < 1000 || back < 1000, "only %d orders to suspend, and %d to come back", suspended, back)
}
