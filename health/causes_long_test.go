//go:build long

package health

import (
	"testing"
	"time"

	"gpusteward/health/incident"
)

// TestCauses expects each check to ignore a healthy cause that resembles its
// fault, and to find the fault itself.
func TestCauses(t *testing.T) {
	t.Parallel()
	for _, c := range scenes() {
		t.Run(c.check+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			n := c.gpus
			if n == 0 {
				n = 8
			}
			pace := max(c.pace, step)
			w, s, worst, found := newWorld(t, Checks()...), newStage(n), incident.None, time.Duration(-1)
			of := map[string]bool{}
			for ; s.at < c.length; s.at += pace {
				s.events = nil
				c.play(s)
				for _, e := range w.step(pace, s.events, s.samples()...) {
					if e.Check == c.check && e.Severity >= incident.Warning {
						of[e.Entity.String()] = true
					}
					switch {
					case e.Check == c.check && e.Severity > worst:
						worst, found = e.Severity, s.at
					case e.Severity >= incident.Warning && e.To != incident.Recovering && e.Check != c.check &&
						!shadowed(e.Check) && !follows(e.Check, c.check):
						t.Errorf("%v: found as well: %s of %s, %v: %s", s.at, e.Check, e.Entity, e.Severity, e.Message)
					}
				}
			}
			switch {
			case c.want == incident.None && worst >= incident.Warning:
				t.Errorf("found after %v, %v, though it is no fault", found, worst)
			case c.want != incident.None && worst != c.want:
				t.Errorf("%v, want %v", worst, c.want)
			case c.want != incident.None && found > c.within:
				t.Errorf("found after %v, want %v at most", found, c.within)
			}
			if c.once != "" && (len(of) != 1 || !of[c.once]) {
				t.Errorf("found of %v, want %s alone", of, c.once)
			}
			t.Logf("%v after %v", worst, found)
		})
	}
}
