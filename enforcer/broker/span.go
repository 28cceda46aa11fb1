package broker

import (
	"time"

	"gpusteward/enforcer/schedule"
	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// spansOfUser bounds the spans of a user's requests, a second. A program that asks a lot
// must not push out the spans of others.
const spansOfUser = 100

// begin begins the span of a request, unless it is not sampled.
func (s *session) begin(name string, now time.Duration) *span.Span {
	a := s.b.options.Spans.Sample(name, s.parent)
	if a != nil && !s.user.spans.take(now, spansOfUser) {
		return nil
	}
	return a
}

// end ends the span of a request with what its answer says.
func (s *session) end(a *span.Span, h wire.Header, payload []byte, r *refusal) {
	if s.parent != (span.Parent{}) {
		a.Parent = s.parent // a HELLO has just said it
	}
	s.mu.Lock()
	tenant := s.tenant
	s.mu.Unlock()
	tags, failed := []any{"tenant", tenant, "pid", s.facts.PID, "session", s.id}, ""
	if h.Type == wire.TypeReserve {
		var ask wire.Memory
		ask.Decode(payload)
		if t, _ := s.seat(ask.GPU); t != nil {
			tags = append(tags, "uuid", t.gpu.uuid)
		}
		tags, failed = append(tags, "bytes", ask.Bytes), s.lacks
	}
	if r != nil {
		failed = r.code.String()
	}
	a.End(failed, tags...)
}

// spans begins and ends the span of a tenant's turn: from when its pages say that it may launch
// until its work has drained. Its first session tells the trace.
func (g *gpu) spans(p *party, was schedule.State) {
	began := p.state.Mode == schedule.Run && (was.Mode != schedule.Run || p.state.Turn != was.Turn)
	if p.turn != nil && (began || p.state.Mode != schedule.Run && !p.drains) {
		failed := ""
		if p.late {
			failed = "late"
		}
		p.turn.End(failed, "tenant", p.name, "uuid", g.uuid, "turn", was.Turn, "sessions", len(p.seats))
		p.turn = nil
	}
	if began && len(p.seats) > 0 {
		p.turn, p.late = p.seats[0].s.begin("broker.turn", g.now()), false
	}
	p.late = p.late || p.state.Late
}
