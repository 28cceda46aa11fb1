package collectors

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestSeriesAreBounded(t *testing.T) {
	r := &Readings{}
	for i := range MaxSeries + 7 {
		r.Set(MissingSymbol, 1, fmt.Sprint(i))
	}
	fixture.If(t, len(r.Samples) != MaxSeries || r.Dropped[MissingSymbol] != 7,
		"%d samples, dropped %v; want %d and 7", len(r.Samples), r.Dropped, MaxSeries)
	h := &Host{errors: map[collectError]uint64{}, dropped: map[string]uint64{}}
	h.account(&pass{collector: &Collector{}}, r.Dropped)
	fixture.Equal(t, h.dropped[MissingSymbol.Name], 7, "accounted %v", h.dropped)
}

func TestPassGoesStale(t *testing.T) {
	began, ended := time.Unix(1e9, 0), time.Unix(1e9+7, 0)
	p := &pass{began: began, ended: ended, due: 10 * time.Second}
	for age, want := range map[time.Duration]bool{0: true, 20 * time.Second: true, 20*time.Second + 1: false} {
		fixture.Equal(t, p.fresh(ended.Add(age)), want, "fresh after %v of a 10 s interval", age)
	}
	fixture.If(t, !(&pass{began: began}).fresh(began.Add(time.Hour)),
		"a value that is read once is stale after an hour")
}

func TestTicksFollowTheWallClockInMonotonicTime(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second} {
		now := time.Now()
		next := nextRead(now, interval)
		fixture.Contains(t, next.String(), " m=", "a clock that is set between two reads delays a reader by as much")
		if wait := next.Sub(now); !next.Truncate(interval).Equal(next) || wait < interval/2 || wait > interval*3/2 {
			t.Errorf("the next read of every %v after %v is %v", interval, now, next)
		}
	}
}
