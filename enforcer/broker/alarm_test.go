package broker

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestAlarm holds that an alarm rings at its time, though nobody reads it, does
// not ring after it was reset or closed, and that the wait ends with the broker.
func TestAlarm(t *testing.T) {
	t.Parallel()
	l := fixture.Value(newLoop(nil))(t)
	clock := newClock()
	l.alarm.set(clock.now() + time.Hour)
	l.alarm.set(0)
	for _, after := range []time.Duration{5 * time.Millisecond, -time.Second} { // a time in the past rings at once
		at := clock.now() + after
		l.alarm.set(at)
		events, err := l.wait()
		fixture.AtLeast(t, clock.now(), at, "rang early")
		fixture.Equal(t, len(events), 1, "… events: %v", err)
	}
	l.alarm.set(clock.now() + 20*time.Millisecond)
	l.alarm.set(0)
	ended := make(chan error)
	go func() {
		events, err := l.wait()
		fixture.Equal(t, len(events), 0, "rings … times though it was taken back")
		ended <- err
	}()
	l.alarm.close()
	l.alarm.set(1) // the alarm is closed: nothing happens
	fixture.Must(t, l.epoll.Close())
	fixture.Fails(t, <-ended, "closed", "the wait of a closed loop")
}
