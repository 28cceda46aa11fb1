package broker

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestAlarm holds that an alarm rings at its time, does not ring after it was
// reset, and ends with Close.
func TestAlarm(t *testing.T) {
	t.Parallel()
	a := fixture.Value(newAlarm())(t)
	clock, rang, ended := newClock(), make(chan time.Duration, 8), make(chan struct{})
	go func() {
		defer close(ended)
		a.serve(func() { rang <- clock.now() })
	}()
	a.set(clock.now() + time.Hour)
	a.set(0)
	for _, after := range []time.Duration{5 * time.Millisecond, -time.Second} { // a time in the past rings at once
		at := clock.now() + after
		a.set(at)
		select {
		case now := <-rang:
			fixture.AtLeast(t, now, at, "rang %v early", at-now)
		case <-time.After(5 * time.Second):
			t.Fatal("does not ring")
		}
	}
	a.set(clock.now() + 20*time.Millisecond)
	a.set(0)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	<-ended
	a.set(1) // the alarm is closed: nothing happens
	fixture.AtMost(t, len(rang), 0, "rings though it was taken back")
}
