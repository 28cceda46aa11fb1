package residency

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

var testNow = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// at returns a workload of a tenant of its own that has been on its GPUs for an hour, in use, at normal priority.
func at(name string) Workload {
	return Workload{Subject: audit.Subject{Tenant: "of " + name, Workload: name}, Since: testNow.Add(-time.Hour),
		Bytes: map[string]uint64{}, Priority: policy.PriorityNormal, Known: true}
}

// asks returns a request of a workload, of a minute ago.
func asks(name string, size uint64) Request {
	return Request{audit.Subject{Tenant: "of " + name, Workload: name}, "a", size * gib, testNow.Add(-time.Minute),
		policy.PriorityNormal}
}

var priorities = map[string]policy.Priority{"high": policy.PriorityHigh, "low": policy.PriorityLow,
	"lowest": policy.PriorityIdle}

// is makes a change of a workload that testdata/decide.tsv has a word for.
func (w *Workload) is(word string) {
	key, value, _ := strings.Cut(word, "=")
	value, keep, _ := strings.Cut(value, "/")
	d, _ := time.ParseDuration(value)
	size, _ := strconv.ParseUint(value, 10, 64)
	switch key {
	case "away":
		w.Phase, w.Wants, w.Since = Suspended, true, testNow.Add(-time.Minute)
	case "moving":
		w.Phase = Moving
	case "fixed":
		w.Fixed = true
	case "unknown":
		w.Known = false
	case "stays", "shares":
		w.Says = map[string]Word{"stays": Stays, "shares": Shares}[key]
	case "wish", "nowish":
		w.Wants = key == "wish"
	case "spare":
		w.Bytes["a"] -= Spare
	case "high", "low", "lowest":
		w.Priority = priorities[key]
	case "since":
		w.Since = testNow.Add(-d)
	case "idle":
		w.Idle = d
	case "tenant":
		w.Tenant = value
	case "promised", "promised.b":
		w.Guaranteed = map[string]uint64{map[string]string{"promised": "a", "promised.b": "b"}[key]: size * gib}
	case "gives":
		size, _ = strconv.ParseUint(keep, 10, 64)
		w.Reclaim = policy.Reclaim{Idle: d, Keep: size * gib}
	case "b", "plain", "?":
		w.Bytes[key] = size * gib
	default:
		if size, err := strconv.ParseUint(key, 10, 64); err == nil {
			w.Bytes["a"] = size * gib
			return
		}
		panic("residency: decide.tsv: what is " + word)
	}
}

// stateIn returns the state that a row of testdata/decide.tsv describes.
func stateIn(text string) State {
	var works []Workload
	var wants []Request
	var slow, before, long bool
	for part := range strings.SplitSeq(text, "; ") {
		words := strings.Fields(part)
		w := at(words[0])
		switch words[1] {
		case "asks":
			w.Since = testNow.Add(-time.Minute)
			for _, word := range words[2:] {
				w.is(word)
			}
			wants = append(wants, Request{w.Subject, "a", w.Bytes["a"], w.Since, w.Priority})
		case "a", "b":
			slow, before, long = words[2] == "slow", words[2] == "before", words[2] == "long"
		default:
			for _, word := range words[1:] {
				w.is(word)
			}
			works = append(works, w)
		}
	}
	s := stateOf(works, wants)
	a, b := s.GPUs["a"], s.GPUs["b"]
	if slow {
		a.Move = 30 * time.Second
	}
	if before {
		a.Free, a.Size = 100*gib, 100*gib
	}
	if long {
		b.Turn = 2 * time.Hour
	}
	s.GPUs["a"], s.GPUs["b"] = a, b
	return s
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

// TestDecide holds the orders in testdata/decide.tsv, and that they say who needs the memory, and what of.
func TestDecide(t *testing.T) {
	t.Parallel()
	for _, row := range fixture.Rows(t, "testdata/decide.tsv") {
		want := strings.TrimPrefix(row[0], "none")
		t.Run(row[1], func(t *testing.T) {
			s := stateIn(row[2])
			got := Decide(s)
			fixture.Equal(t, said(got), want, "it orders")
			if len(row) > 3 {
				fixture.Equal(t, got[0].Why, row[3], "because")
			}
			slices.Reverse(s.Workloads)
			fixture.Equal(t, said(Decide(s)), want, "backwards, it orders")
		})
	}
}

// randomState returns a state of workloads and requests on a few GPUs.
func randomState(r *rand.Rand) State {
	var works []Workload
	var wants []Request
	free := map[string]uint64{"a": 100, "b": 100, "plain": 100}
	for i := range r.IntN(12) {
		w := at(fmt.Sprint(i))
		w.Tenant, w.Idle = fmt.Sprint(r.IntN(4)), time.Duration(r.IntN(200))*time.Second
		w.Since, w.Priority = testNow.Add(-time.Duration(r.IntN(200))*time.Second), policy.Priority(r.IntN(5))
		w.Reclaim = policy.Reclaim{Idle: time.Minute, Keep: uint64(r.IntN(30)) * gib}
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
