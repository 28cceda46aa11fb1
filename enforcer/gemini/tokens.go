package gemini

import (
	"slices"
	"time"

	"gpusteward/enforcer/schedule"
)

const (
	rounds   = 5                     // turns that a tenant gets at once, at most
	crumb    = 2 * time.Millisecond  // less of a turn is not worth an answer
	patience = time.Millisecond      // a client whose quota is over has to come back by itself
	waitMost = 50 * time.Millisecond // for who is known to come back late
)

// tokens gives out turns. A turn is the answer to Quota, withheld until then;
// it ends when the client asks again, because before that it waits for its
// kernels, or by the wall's clock if it does not. There is no message for
// having nothing more to do. It belongs to whoever holds the server's mutex.
type tokens struct {
	scheduler *schedule.Scheduler
	gpu       *schedule.GPU
	turn      time.Duration
	delay     time.Duration // of an answer after its request, at least
	tenants   []*tenant
	answer    func(waiter, time.Duration)
	turns     uint64 // that were given out
	expired   uint64 // turns whose client did not come back
}

// A tenant is a name: the processes that go by it share its turns.
type tenant struct {
	Entry
	turn    uint64        // that its clients have tokens of; 0 is none
	over    time.Duration // when those are over
	until   time.Duration // how long is waited for whoever has one
	runs    bool          // the schedule was not told since that it has drained
	holders int
	waiting []waiter
}

// A waiter is a request for time that is not answered yet.
type waiter struct {
	client *client
	conn   *conn
	id     int32
	burst  time.Duration
	from   time.Duration // when it may be answered
}

func newTokens(turn time.Duration, answer func(waiter, time.Duration)) *tokens {
	t := &tokens{turn: turn, answer: answer, scheduler: schedule.New(schedule.Config{
		Turn: turn, Turns: true,
		// A token cannot be taken back, so the schedule has to wait for any.
		Drain: 2*rounds*turn + 2*waitMost,
	})}
	t.gpu = t.scheduler.Add()
	return t
}

func share(e Entry) schedule.Share {
	return schedule.Share{Weight: max(e.Request, 1e-3), Limit: e.Limit}
}

// replace puts other tenants into force and returns who went. Who stays keeps
// its turn and its place.
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

// find returns the tenant of that name, nil where there is none.
func (t *tokens) find(name string) *tenant {
	if i := slices.IndexFunc(t.tenants, func(n *tenant) bool { return n.Name == name }); i >= 0 {
		return t.tenants[i]
	}
	return nil
}

// ask takes note that a client wants time, which also says that all that it
// launched before is done.
func (t *tokens) ask(now time.Duration, w waiter, overuse time.Duration) {
	w.client.late, w.from = overuse, now+t.delay
	t.release(w.client)
	n := w.client.tenant
	n.waiting = append(n.waiting, w)
	t.want(now, n)
}

// want tells the schedule that somebody waits.
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

// forget drops the requests of a connection.
func (t *tokens) forget(n *tenant, c *conn) {
	n.waiting = slices.DeleteFunc(n.waiting, func(w waiter) bool { return w.conn == c })
}

// step moves turns on; it returns when it must be called again, 0: not before
// the next input.
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

// end gives a turn back. All of it is charged, by the wall's clock: a client
// may say what it likes.
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

// grant answers those of a tenant who wait, if it has the GPU: with a new
// turn, or with what is left of the one that others of it have already.
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
