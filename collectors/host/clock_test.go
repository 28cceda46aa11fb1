package host

import (
	"testing"
	"time"
	"unsafe"
)

// set returns t as it would be if the wall clock had been set by that amount
// before it was read: the monotonic reading is the same. (Bits 30 to 62 of a
// Time's first word hold the seconds since 1885, as package time documents.)
func set(t time.Time, by time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << 30
	return t
}

const years = 365 * 24 * time.Hour

func TestRebased(t *testing.T) {
	t.Parallel()
	then := time.Now()
	for _, by := range []time.Duration{0, 56 * years, -56 * years, time.Second} {
		now := set(then.Add(time.Minute), by)
		if wall := now.Round(0).Sub(then.Round(0)); wall != time.Minute+by || now.Sub(then) != time.Minute {
			t.Fatalf("the test set its clock by %v instead of %v", wall-time.Minute, by)
		}
		got := Rebased(then, now)
		if ago := now.Round(0).Sub(got.Round(0)); ago != time.Minute || !got.Equal(then) {
			t.Errorf("set by %v: a moment one minute ago became %v ago", by, ago)
		}
		if got := Rebased(then.Round(0), now); !got.Round(0).Equal(then.Round(0)) {
			t.Errorf("a time without a monotonic reading became %v", got)
		}
	}
	if got := Rebased(time.Time{}, then); !got.IsZero() {
		t.Errorf("the zero time became %v", got)
	}
}
