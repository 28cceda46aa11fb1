package gemini

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

const ms = time.Millisecond

// A world is a GPU with clients in virtual time. Each client launches kernels
// while its quota lasts, waits for them, and asks again.
type world struct {
	t         testing.TB
	tokens    *tokens
	now, wake time.Duration
	clients   map[*client]*program
}

// A program runs in a client.
type program struct {
	client      *client
	at          time.Duration        // when it asks next; 0: it waits
	over        time.Duration        // how late its kernels end
	idle        time.Duration        // how long it sleeps after each quota
	late        func() time.Duration // time until it asks again after each quota; nil: none
	never       bool                 // it does not return
	from, asked time.Duration
	held        time.Duration // time that it had the GPU
	turns       int
	until       time.Duration // its quota's end
}

func newWorld(t testing.TB, turn time.Duration, entries ...Entry) *world {
	w := &world{t: t, clients: map[*client]*program{}}
	w.tokens = newTokens(turn, w.answer)
	w.tokens.replace(0, entries)
	return w
}

func (w *world) add(name string, p program) *program {
	p.client = &client{key: key{name: name, pid: len(w.clients) + 1}, tenant: w.tokens.find(name)}
	p.at = w.now + 1
	w.clients[p.client] = &p
	return &p
}

func (w *world) answer(of waiter, quota time.Duration) {
	p := w.clients[of.client]
	fixture.Stop(w.t, p.at != 0 || quota <= 0 || quota > rounds*w.tokens.turn,
		"at %v %s has a quota of %v, and asks at %v", w.now, of.client.name, quota, p.at)
	for o, other := range w.clients {
		fixture.Stop(w.t, other.until > w.now && o.tenant != of.client.tenant,
			"at %v %s and %s have quotas", w.now, o.name, of.client.name)
	}
	p.turns++
	p.from, p.until = w.now, w.now+quota
	p.at = w.now + quota + p.over + p.idle
	if p.late != nil {
		p.at += p.late()
	}
	if p.never {
		p.at = math.MaxInt64
	}
}

// run advances the world by d.
func (w *world) run(d time.Duration) {
	for end := w.now + d; ; {
		next, who := end, (*program)(nil)
		for _, p := range w.clients {
			if p.at != 0 && (p.at < next || p.at == next && who != nil && p.client.pid < who.client.pid) {
				next, who = p.at, p
			}
		}
		if w.wake != 0 && w.wake < next {
			next, who = w.wake, nil
		}
		for _, p := range w.clients {
			if p.turns > 0 {
				p.held += max(min(next, p.until+p.over)-max(w.now, p.from), 0)
			}
		}
		w.now = next
		if who == nil && next == end {
			return
		}
		if who != nil {
			who.at, who.asked = 0, w.now
			w.tokens.ask(w.now, waiter{client: who.client}, who.over)
		}
		w.wake = w.tokens.step(w.now)
		fixture.Stop(w.t, w.wake != 0 && w.wake <= w.now, "at %v to be called at %v", w.now, w.wake)
	}
}

// sharing returns a world with a program for each share of the GPU.
func sharing(t testing.TB, shares []float64, of func(i int) program) (w *world, all []*program) {
	var entries []Entry
	for i, s := range shares {
		entries = append(entries, Entry{Name: fmt.Sprint(i), Request: s, Limit: 1})
	}
	w = newWorld(t, 20*ms, entries...)
	for i := range shares {
		all = append(all, w.add(fmt.Sprint(i), of(i)))
	}
	return w, all
}

func TestSharesOfSaturatedClients(t *testing.T) {
	for _, shares := range [][]float64{{0.3, 0.7}, {0.1, 0.9}, {0.5, 0.5}, {0.2, 0.3, 0.5}} {
		t.Run(fmt.Sprint(shares), func(t *testing.T) {
			w, all := sharing(t, shares, func(i int) program { return program{over: time.Duration(i) * ms} })
			w.run(10 * time.Second)
			for i, p := range all {
				if got := 100 * p.held.Seconds() / 10; math.Abs(got-100*shares[i]) > 0.5 {
					t.Errorf("client %d has %.2f %%, not %v", i, got, 100*shares[i])
				}
			}
			fixture.Equal(t, w.tokens.expired, 0, "… turns ended before the client came back")
		})
	}
}

// A client that returns a little late reports nothing meanwhile, and still counts as wanting the GPU. Its
// share follows its weight, and so does the share of a client that is always there.
func TestSharesOfLateClients(t *testing.T) {
	t.Parallel()
	for _, shares := range [][]float64{{0.3, 0.7}, {0.1, 0.9}, {0.5, 0.5}, {0.2, 0.3, 0.5}} {
		for name, late := range map[string]func(i int) time.Duration{
			"by up to 5 ms":     func(int) time.Duration { return rand.N(5 * ms) },
			"by 2 ms":           func(int) time.Duration { return 2 * ms },
			"by 5 ms":           func(int) time.Duration { return 5 * ms },
			"the first by 5 ms": func(i int) time.Duration { return 5 * ms * time.Duration(1-min(i, 1)) },
			"the last by 5 ms":  func(i int) time.Duration { return 5 * ms * time.Duration(i/(len(shares)-1)) },
		} {
			t.Run(fmt.Sprint(shares, " ", name), func(t *testing.T) {
				w, all := sharing(t, shares, func(i int) program {
					return program{late: func() time.Duration { return late(i) }}
				})
				w.run(10 * time.Second)
				sum := time.Duration(0)
				for _, p := range all {
					sum += p.held
				}
				for i, p := range all {
					if got := 100 * float64(p.held) / float64(sum); math.Abs(got-100*shares[i]) > 2 {
						t.Errorf("client %d has %.1f %%, not %v", i, got, 100*shares[i])
					}
				}
				fixture.AtLeast(t, sum, 8500*ms, "the GPU was used for … of 10 s")
			})
		}
	}
}

// A scheduler's answers must not come too soon. The delay costs no share and little time.
func TestAnswersComeNotTooSoon(t *testing.T) {
	for _, shares := range [][]float64{{1}, {0.3, 0.7}} {
		w, all := sharing(t, shares, func(int) program { return program{} })
		w.tokens.delay = 2 * ms
		w.tokens.answer = func(of waiter, quota time.Duration) {
			if w.now < w.clients[of.client].asked+2*ms {
				t.Errorf("at %v an answer to what was asked at %v", w.now, w.clients[of.client].asked)
			}
			w.answer(of, quota)
		}
		w.run(10 * time.Second)
		for i, p := range all {
			if got := p.held.Seconds() / 10; got < shares[i]-0.03 || got > shares[i]+0.01 {
				t.Errorf("with shares %v, client %d has %.3f", shares, i, got)
			}
		}
	}
}

func TestLimitHoldsAlone(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.3, Limit: 0.3})
	p := w.add("a", program{})
	w.run(10 * time.Second)
	got := 100 * p.held.Seconds() / 10
	fixture.If(t, got > 30.5 || got < 28, "%.2f %% of 30", got)
}

func TestAloneQuotasAreLong(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Limit: 1}, Entry{Name: "b", Limit: 1})
	p := w.add("a", program{})
	w.run(time.Second)
	fixture.If(t, p.turns != 10 && p.turns != 11, "%d turns in a second alone", p.turns)
	b := w.add("b", program{})
	w.run(100*ms + time.Microsecond)
	fixture.AtLeast(t, b.turns, 1, "turns of the second client")
}

// Overuse is charged: kernels that run beyond a quota do not increase a share.
func TestOveruseIsCharged(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.5, Limit: 1}, Entry{Name: "b", Request: 0.5, Limit: 1})
	a, b := w.add("a", program{over: 15 * ms}), w.add("b", program{})
	w.run(10 * time.Second)
	got := a.held.Seconds() / (a.held + b.held).Seconds()
	fixture.If(t, math.Abs(got-0.5) > 0.01, "the client that exceeds its quota has %.1f %%", 100*got)
	if w.tokens.expired > 1 { // the first one, which could not be known
		t.Errorf("%d turns ended before the client came back", w.tokens.expired)
	}
}

func TestTurnOfASilentClientExpires(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.5, Limit: 1}, Entry{Name: "b", Request: 0.5, Limit: 1})
	w.add("a", program{never: true})
	w.run(10 * ms)
	b := w.add("b", program{})
	w.run(rounds*20*ms + patience - 10*ms + time.Microsecond)
	fixture.AtLeast(t, b.turns, 1, "turns of the second client")
	w.run(time.Second)
	fixture.AtLeast(t, b.held.Seconds(), 0.9, "b had … of the second after")
	if s := w.tokens.gpu.Stats("a"); w.tokens.expired != 1 || s.Charged < rounds*20*ms {
		t.Errorf("%d turns expired; charged %v", w.tokens.expired, s.Charged)
	}
}

func TestSleeperLeavesTheGPUToOthers(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.9, Limit: 1}, Entry{Name: "b", Request: 0.1, Limit: 1})
	w.add("a", program{idle: 500 * ms})
	b := w.add("b", program{})
	w.run(10 * time.Second)
	if got := b.held.Seconds() / 10; got < 0.8 { // a has a turn of 100 ms in each 600 ms, by its weight
		t.Errorf("beside one that sleeps b has %.2f", got)
	}
}

func TestProcessesOfANameShareItsTurns(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.5, Limit: 1}, Entry{Name: "b", Request: 0.5, Limit: 1})
	for range 3 {
		w.add("a", program{})
	}
	b := w.add("b", program{})
	w.run(10 * time.Second)
	fixture.Near(t, b.held.Seconds()/10, 0.5, 0.01, "beside three processes of one name b has")
	for c, p := range w.clients {
		fixture.If(t, c.name == "a" && p.turns < 100, "process %d of a had %d turns", c.pid, p.turns)
	}
}

func TestReplaceTakesTurnsAndPlaces(t *testing.T) {
	w := newWorld(t, 20*ms, Entry{Name: "a", Request: 0.5, Limit: 1}, Entry{Name: "b", Request: 0.5, Limit: 1})
	a, b := w.add("a", program{}), w.add("b", program{})
	w.run(time.Second)
	gone := w.tokens.replace(w.now, []Entry{{Name: "b", Request: 0.5, Limit: 1}})
	fixture.Stop(t, len(gone) != 1 || gone[0].Name != "a" || w.tokens.find("a") != nil, "%+v went", gone)
	delete(w.clients, a.client)
	b.held = 0
	w.wake = w.tokens.step(w.now)
	w.run(time.Second)
	fixture.AtLeast(t, b.held.Seconds(), 0.9, "the remaining client has … of the next second")
}

// TestAnyOrder runs random operations at random times. It holds that answers
// are given, and that every waiting client is answered in the end.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		var entries []Entry
		for i := range 1 + r.IntN(5) {
			entries = append(entries, Entry{Name: fmt.Sprint(i), Request: r.Float64(), Limit: 0.2 + 0.8*r.Float64()})
		}
		w := newWorld(t, time.Duration(1+r.IntN(30))*ms, entries...)
		for range 1 + r.IntN(8) {
			w.add(entries[r.IntN(len(entries))].Name, program{
				over: time.Duration(r.IntN(2)*r.IntN(40)) * ms, idle: time.Duration(r.IntN(2)*r.IntN(300)) * ms,
				never: r.IntN(6) == 0,
			})
			w.run(time.Duration(r.IntN(200)) * ms)
		}
		for _, p := range w.clients {
			p.turns = 0
		}
		w.run(20 * time.Second)
		for c, p := range w.clients {
			if p.turns == 0 && !p.never {
				t.Fatalf("seed %d: %+v waits for ever", seed, c.key)
			}
		}
	}
}
