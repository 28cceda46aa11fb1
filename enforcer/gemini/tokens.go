package gemini

import (
	"slices"
	"time"

	"gpusteward/enforcer/schedule"
)

const (
	rounds   = 5                     // most turns that a tenant gets at once
	crumb    = 2 * time.Millisecond  // a smaller rest of a turn is not worth an answer
	patience = time.Millisecond      // for a client to come back after its quota
	waitMost = 50 * time.Millisecond // for clients that usually come back late
)

// tokens gives out turns. A turn is the answer to Quota, withheld until then.
// It ends when the client asks again, because the client first waits for its
// kernels; otherwise it ends by the clock. No message says that a client has
// nothing more to do. The server's mutex guards it.
type tokens struct {
	scheduler *schedule.Scheduler
	gpu       *schedule.GPU
	turn      time.Duration
	delay     time.Duration // minimal delay of an answer
	tenants   []*tenant
	answer    func(waiter, time.Duration)
	turns     uint64 // that were given out
	expired   uint64 // turns whose client did not come back
}

// A tenant is a name: its processes share its turns.
type tenant struct {
	Entry
	turn    uint64        // of its clients' tokens; 0 is none
	over    time.Duration // when the tokens end
	until   time.Duration // end of the wait for their holders
	runs    bool          // no drain was reported to the schedule since
	holders int
	waiting []waiter
}

// A waiter is a request for time without an answer.
type waiter struct {
	client *client
	conn   *conn
	id     int32
	burst  time.Duration
	from   time.Duration // the earliest time of the answer
}

func newTokens(turn time.Duration, answer func(waiter, time.Duration)) *tokens {
	t := &tokens{turn: turn, answer: answer, scheduler: schedule.New(schedule.Config{
		Turn: turn, Turns: true,
		// A token cannot be revoked, so the schedule has to wait for each.
		Drain: 2*rounds*turn + 2*waitMost,
	})}
	t.gpu = t.scheduler.Add()
	return t
}

func share(e Entry) schedule.Share {
	return schedule.Share{Weight: max(e.Request, 1e-3), Limit: e.Limit}
}

// replace puts other tenants in force and returns those that left. A tenant
// that stays keeps its turn and its place.
func (t *tokens) replace(now time.Duration, entries []Entry) (gone []*tenant) {
	var stay []*tenant
	for _, old := range t.tenants {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == old.Name }) {
			t.gpu.Leave(now, old.Name)
			gone = append(gone, old)
		}
	}
	for _, e := range entries {
		i := slices.IndexFunc(t.tenants, func(o *tenant) bool { return o.Name == e.Name })
		if i < 0 {
			t.gpu.Join(now, e.Name, share(e))
			stay = append(stay, &tenant{Entry: e})
			continue
		}
		t.gpu.Change(now, e.Name, share(e))
		t.tenants[i].Entry = e
		stay = append(stay, t.tenants[i])
	}
	t.tenants = stay
	return gone
}

// find returns the tenant of that name, or nil.
func (t *tokens) find(name string) *tenant {
	if i := slices.IndexFunc(t.tenants, func(n *tenant) bool { return n.Name == name }); i >= 0 {
		return t.tenants[i]
	}
	return nil
}

// ask records that a client wants time, which also says that all its earlier
// launches are done.
func (t *tokens) ask(now time.Duration, w waiter, overuse time.Duration) {
	w.client.late, w.from = overuse, now+t.delay
	t.release(w.client)
	n := w.client.tenant
	n.waiting = append(n.waiting, w)
	t.want(now, n)
}

// want tells the schedule that a client waits.
func (t *tokens) want(now time.Duration, n *tenant) { t.gpu.Want(now, n.Name) }

// holds says whether the client has a token of this turn.
func (t *tokens) holds(c *client) bool {
	return c.tenant != nil && c.token != 0 && c.token == c.tenant.turn
}

// release takes the client's token, if it has one of this turn.
func (t *tokens) release(c *client) {
	if t.holds(c) {
		c.tenant.holders--
	}
	c.token = 0
}

// forget drops a connection's requests.
func (t *tokens) forget(n *tenant, c *conn) {
	n.waiting = slices.DeleteFunc(n.waiting, func(w waiter) bool { return w.conn == c })
}

// step advances turns; it returns the time of the next call; 0: not before the
// next input.
func (t *tokens) step(now time.Duration) time.Duration {
	for {
		for _, n := range t.tenants {
			if n.turn != 0 && (n.holders == 0 || now >= n.until) {
				t.end(now, n)
			}
		}
		wake := t.scheduler.Decide(now)
		sooner := func(at time.Duration) {
			if wake == 0 || at < wake {
				wake = at
			}
		}
		unused := false
		for _, n := range t.tenants {
			if n.runs && n.turn == 0 && t.gpu.State(n.Name).Mode == schedule.Pause {
				n.runs, unused = false, true
				t.gpu.Drained(now, n.Name, schedule.Usage{}) // none of its clients has a token
			}
			t.grant(now, n)
			if len(n.waiting) > 0 && now < n.waiting[0].from {
				sooner(n.waiting[0].from)
			}
			switch {
			case n.turn == 0:
			case n.holders == 0:
				unused = true
			default:
				sooner(n.until)
			}
		}
		if !unused {
			return wake
		}
	}
}

// end gives a turn back. All of it is charged, by the clock: a client's own
// report is not trusted.
func (t *tokens) end(now time.Duration, n *tenant) {
	if n.holders > 0 {
		t.expired++
	}
	n.turn, n.holders = 0, 0
	if len(n.waiting) == 0 {
		t.gpu.Rest(now, n.Name, schedule.Usage{})
	} else {
		t.gpu.Drained(now, n.Name, schedule.Usage{})
	}
}

// grant answers a tenant's waiting requests if it has the GPU: with a new turn,
// or with the rest of the one that other clients of it have.
func (t *tokens) grant(now time.Duration, n *tenant) {
	state := t.gpu.State(n.Name)
	if state.Mode == schedule.Pause {
		return
	}
	n.runs = true
	if len(n.waiting) > 0 && now < n.waiting[0].from {
		return
	}
	if n.turn == 0 {
		quota := rounds * t.turn
		if state.End != 0 {
			quota = max(min(quota, state.End-now), min(t.turn, crumb))
		}
		t.turns++
		n.turn, n.over, n.until = t.turns, now+quota, 0
	}
	left := n.over - now
	n.waiting = slices.DeleteFunc(n.waiting, func(w waiter) bool {
		if now < w.from || n.holders > 0 && left < max(crumb, w.burst) {
			return false
		}
		if w.client.token != n.turn {
			w.client.token = n.turn
			n.holders++
		}
		n.until = max(n.until, n.over+min(patience+w.client.late, waitMost))
		t.answer(w, left)
		return true
	})
}
