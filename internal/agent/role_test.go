package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// TestTasksEndInTime has a task that does not end, beside one that fails or a
// signal, and an enforcer that lets go of what it stopped.
func TestTasksEndInTime(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	ends := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		first task
		hangs bool          // the second
		rests time.Duration // until what was stopped goes on
		fails error
		took  time.Duration
	}{
		"all end":                 {ends, false, 0, nil, 0},
		"one does not":            {ends, true, 0, nil, obey},
		"one fails":               {fails, false, 0, failed, 0},
		"one fails, one does not": {fails, true, 0, failed, obey},
		"something is stopped":    {ends, true, time.Minute, nil, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				forever, second := make(chan struct{}), ends
				if c.hangs {
					second = func(context.Context) error { <-forever; return nil }
				}
				ctx, signal := context.WithCancel(t.Context())
				a := assembly{tasks: []task{c.first, second}}
				if c.rests > 0 {
					rested := make(chan struct{})
					a.rested = rested
					time.AfterFunc(c.rests, func() { close(rested) })
				}
				began := time.Now()
				if c.fails == nil {
					signal()
				}
				if err := a.run(ctx, obey, slog.New(slog.DiscardHandler)); !errors.Is(err, c.fails) {
					t.Errorf("%v, want %v", err, c.fails)
				}
				fixture.Equal(t, time.Since(began), c.took, "the end took")
				close(forever)
				signal()
			})
		})
	}
}
