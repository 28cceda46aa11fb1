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
	for _, after := range []time.Duration{5 * time.Millisecond, -time.Second} { // a time in the past rings at once
		at := clock.now() + after
		l.alarm.set(at)
		events, err := l.wait()
		fixture.AtLeast(t, clock.now(), at, "rang early")
		fixture.Equal(t, len(events), 1, "… events: %v", err)
	}
	l.alarm.set(clock.now() + 20*time.Millisecond)
	l.alarm.set(0)
	l.alarm.close()
	l.alarm.set(1) // the alarm is closed: nothing happens
	time.AfterFunc(time.Millisecond, func() { _ = l.epoll.Close() })
	events, err := l.wait()
	fixture.Equal(t, len(events), 0, "rings … times though it was taken back")
	fixture.Fails(t, err, "closed", "the wait of a closed loop")
}
