package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A liar is a process that speaks the protocol without a hook. Each millisecond
// it sends any message, as often as the broker accepts that.
type liar struct {
	*GPU
	name  string
	at    time.Duration
	state State         // from its page
	since time.Duration // time in that mode
	began time.Duration // begin of that mode
	busy  bool          // it has work on the GPU
}

// lies is a step of a liar; it reports whether the broker received a message.
func (w *world) lies(r *rank1) (told bool) {
	if w.now%ms != 0 {
		return false
	}
	l := &r.liar
	if l.state.Mode != r.seen.Mode {
		l.began = w.now
	}
	l.GPU, l.name, l.at, l.state, l.since, l.busy = r.gpu.g, r.p.name, w.now, r.seen, w.now-l.began, len(r.queue) > 0
	r.p.lie(l)
	if r.p.kernel > 0 && r.seen.Mode != Pause && len(r.queue) == 0 {
		r.push(r.p.kernel)
	}
	return true
}

// wants reports work, once.
func (l *liar) wants() {
	if !l.Wants(l.name) {
		l.Want(l.at, l.name)
	}
}

// paused reports whether the pause has the given length and there is no work on the GPU. A process that
// falsely reports a drain goes around the hook, which the audit finds.
func (l *liar) paused(from, to time.Duration) bool {
	return l.state.Mode == Pause && !l.busy && l.since >= from && l.since < to
}

// lies are messages by which a process may try to get more than its turns.
var lies = map[string]func(l *liar){
	"has work": (*liar).wants,
	"has work, and is there": func(l *liar) {
		l.wants()
		l.Hear(l.at, l.name)
	},
	"has work, and drains for ever": func(l *liar) {
		l.wants()
		l.Report(l.at, l.name, Usage{})
	},
	"drained long ago, and says so late": func(l *liar) {
		l.wants()
		if l.paused(47*ms, time.Hour) {
			l.Drained(l.at, l.name, Usage{Ago: time.Hour})
		}
	},
	"drained long ago, and says so nearly in time": func(l *liar) {
		l.wants()
		if l.paused(8*ms, time.Hour) {
			l.Drained(l.at, l.name, Usage{Ago: time.Hour})
		}
	},
	"rests for long, and says so late": func(l *liar) {
		if l.paused(47*ms, 100*ms) {
			l.Rest(l.at, l.name, Usage{Ago: time.Hour})
		} else {
			l.wants()
		}
	},
	"rests for long, and says so nearly in time": func(l *liar) {
		if l.paused(8*ms, 16*ms) {
			l.Rest(l.at, l.name, Usage{Ago: time.Hour})
		} else {
			l.wants()
		}
	},
	"goes before it has drained, and comes back": func(l *liar) {
		if l.paused(47*ms, 48*ms) {
			share := l.find(l.name).share
			l.Leave(l.at, l.name)
			l.Join(l.at, l.name, share)
		}
		l.wants()
	},
	"gets on well": func(l *liar) {
		l.wants()
		l.Report(l.at, l.name, Usage{Launched: 5, Solo: 10, SoloTime: ms})
	},
	"gets on badly": func(l *liar) {
		l.wants()
		l.Report(l.at, l.name, Usage{Solo: 10, SoloTime: ms})
	},
	"gets on otherwise each time": func(l *liar) {
		l.wants()
		l.Report(l.at, l.name, Usage{Launched: uint64(l.at / ms % 7), Solo: 1 + uint64(l.at/ms%1000), SoloTime: ms})
	},
}

// A tenant that once missed a drain's deadline has its part with what it did then, and no more; and its part again.
func TestOneLongKernel(t *testing.T) {
	t.Parallel()
	a, b := kind("queue", 38), kind("queue", 62)
	a.name, b.name = "a", "b"
	w := newWorld(t, false, nil, a, b)
	w.run(2 * time.Second)
	r := a.ranks[0]
	for r.seen.Mode != Run || len(r.queue) == 0 {
		w.run(tick)
	}
	r.queued += 300*ms - r.queue[0]
	r.queue[0] = 300 * ms
	at, was := w.now, r.done
	w.run(time.Second)
	part := (r.done - was).Seconds() / 0.38
	fixture.If(t, part < 0.85 || part > 1.05, "it has %.3f of its part in the second from then", part)
	w.run(2 * time.Second)
	all := alone(t, "queue").lone
	fixture.AtLeast(t, a.rate(at+time.Second, w.now)/all/0.38, 0.97, "it has … of its part from a second after")
	fixture.AtLeast(t, b.rate(at, w.now)/all/0.62, 0.95, "the other has … of its part")
}
