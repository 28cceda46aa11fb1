package ledger

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"gpusteward/internal/fixture"
)

// A purse is a lease: bytes that may be taken while it is open.
type purse struct {
	mu    sync.Mutex
	open  bool
	bytes uint64
}

func (p *purse) Idle() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

func (p *purse) Add(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = true
	p.bytes += bytes
}

func (p *purse) Close() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.bytes
	p.open, p.bytes = false, 0
	return was
}

func (p *purse) take(bytes uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open || bytes > p.bytes {
		return false
	}
	p.bytes -= bytes
	return true
}

func (p *purse) put(bytes uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		p.bytes += bytes
	}
	return p.open
}

// have commits bytes.
func have(t *testing.T, l *Ledger, name string, id, bytes uint64) {
	t.Helper()
	r, ok, free := l.Reserve(name, id, bytes)
	fixture.Stop(t, !ok, "%d bytes are refused to %s, %d are free", bytes, name, free)
	fixture.Must(t, l.Commit(id, r, bytes))
}

// TestIdleLeasesAreRecalled has tenants ask for memory that is lent to others and idle.
func TestIdleLeasesAreRecalled(t *testing.T) {
	var l Ledger
	var a, b purse
	l.SetCapacity(1000)
	l.SetReserved("b", 300)
	have(t, &l, "a", 1, 60)
	l.Lend(1, &a)
	have(t, &l, "b", 2, 250)
	l.Lend(2, &b)
	fixture.Stop(t, a.bytes != 80 || b.bytes != 76, "%d and %d bytes are lent", a.bytes, b.bytes)
	for _, bytes := range []uint64{641, 1 << 60} { // b keeps 300
		if _, ok, free := l.Reserve("c", 3, bytes); ok || free != 1000-140-326 || !a.open || !b.open {
			t.Errorf("%d of 640 bytes: %v, %d are free; open %v %v", bytes, ok, free, a.open, b.open)
		}
	}
	if _, ok, _ := l.Reserve("c", 3, 640); !ok || a.open || b.open {
		t.Errorf("the last 640 bytes: %v; open %v %v", ok, a.open, b.open)
	}
	u := l.Usage("b")
	fixture.If(t, u.Committed != 250 || u.Reserved != 0 || u.Denied != 0 || l.Usage("c").Denied != 2, "%+v", u)
}

func TestALeaseEndsWithItsSession(t *testing.T) {
	for what, end := range map[string]func(*Ledger){
		"it ends":                 func(l *Ledger) { l.End(1) },
		"it is another tenant's":  func(l *Ledger) { _ = l.Move("b", 1); _ = l.Move("a", 1) },
		"the cap is lowered":      func(l *Ledger) { l.SetCap("a", 100) },
		"another needs the bytes": func(l *Ledger) { l.Reserve("a", 2, 850); l.End(2); l.Release(2) },
	} {
		var l Ledger
		var p purse
		l.SetCap("a", 1000)
		have(t, &l, "a", 1, 200)
		l.Lend(1, &p)
		p.take(10)
		p.put(160) // 150 of the 200, and those 10
		end(&l)
		if u := l.Usage("a"); p.open || u.Committed+u.Dead != 50 || u.Reserved != 0 || u.Leased != 0 {
			t.Errorf("%s: open %v, %+v", what, p.open, u)
		}
	}
}

// TestFreedBeforeItsCommitIsRead closes a lease with bytes that the ledger still counts as reserved.
func TestFreedBeforeItsCommitIsRead(t *testing.T) {
	for commit, left := range map[uint64]uint64{50: 10, 0: 0} { // 0 is a lie
		var l Ledger
		var p purse
		l.SetCap("a", 100)
		have(t, &l, "a", 1, 10)
		l.Lend(1, &p)
		r, _, _ := l.Reserve("a", 1, 50)
		p.put(50)
		l.Reserve("a", 2, 35) // this request needs the lease's 11 bytes
		fixture.Need(t, p.open, false, "the lease is open")
		fixture.Must(t, l.Commit(1, r, commit))
		u := l.Usage("a")
		fixture.If(t, u.Committed != left || u.Reserved != 35, "commit of %d: %+v", commit, u)
		have(t, &l, "a", 1, 20)
		fixture.Equal(t, l.Usage("a").Committed, left+20, "committed after %d, as what is taken later is not freed", commit)
	}
}

// TestALieInALeaseIsNoMoreThanAFree puts more bytes into a lease than it lent.
func TestALieInALeaseIsNoMoreThanAFree(t *testing.T) {
	var l Ledger
	var p purse
	l.SetCap("a", 1000)
	have(t, &l, "a", 1, 200)
	have(t, &l, "a", 2, 300)
	l.Lend(1, &p)
	p.put(1 << 62)
	u := l.Usage("a")
	fixture.If(t, u.Committed != 300 || u.Leased != 262 || l.Session(1) != 0, "%+v", u)
	have(t, &l, "a", 2, 600)
	u = l.Usage("a")
	fixture.If(t, u.Committed != 900 || u.Reserved != 0, "closed: %+v", u)
}

func TestWhatTheDriverDidNotGiveIsMissed(t *testing.T) {
	var l Ledger
	var p purse
	l.SetReserved("a", 500)
	l.SetCap("a", 1000)
	have(t, &l, "a", 1, 200)
	l.Lend(1, &p)
	p.take(50)
	fixture.Must(t, l.Failed(1, 50))
	u := l.Usage("a")
	fixture.If(t, u.Committed != 200 || u.Asked != 2 || u.Missed != 1, "%+v", u)
	err := l.Failed(1, 201)
	fixture.If(t, !errors.Is(err, errBytes), "more than it has: %v", err)
	err = l.Failed(9, 1)
	fixture.If(t, !errors.Is(err, errSession), "nobody's: %v", err)
}

// TestAdoptedMemoryIsLent lends to a session that already had memory, after all of it is booked.
func TestAdoptedMemoryIsLent(t *testing.T) {
	var l Ledger
	var p purse
	l.SetCap("a", 1000)
	fixture.Must(t, adopt(&l, "a", 1, 400))
	l.Listed(300, 1)
	l.Lend(1, &p)
	fixture.If(t, p.open, "more could be put there than is booked")
	l.Listed(400, 1)
	l.Lend(1, &p)
	p.put(100)
	u := l.Usage("a")
	fixture.If(t, !p.open || u.Committed != 300 || u.Leased != 175, "%+v", u)
	l.Listed(200, 1)
	u = l.Usage("a")
	fixture.If(t, p.open || u.Committed != 200 || u.Reserved != 0, "with 200 listed: open %v, %+v", p.open, u)
}

func TestLeasesAreBounded(t *testing.T) {
	var l Ledger
	purses := make([]purse, Leases+1)
	for i := range purses {
		have(t, &l, "a", uint64(i), 1)
		l.Lend(uint64(i), &purses[i])
	}
	fixture.Equal(t, purses[Leases].open, false, "one more is open than there may be")
	l.End(0)
	l.Lend(Leases, &purses[Leases])
	fixture.If(t, !purses[Leases].open, "none is open in place of one that ended")
}

// TestRace lets sessions take, give up and free lent and requested memory of one tenant
// concurrently, and end. It never has more than its cap.
func TestRace(t *testing.T) {
	const limit, sessions, rounds = 1000, 16, 5000
	var l Ledger
	l.SetCap("a", limit)
	var mu sync.Mutex
	var used, most uint64
	took := func(bytes uint64) {
		mu.Lock()
		defer mu.Unlock()
		used += bytes
		most = max(most, used)
	}
	freed := func(bytes uint64) {
		mu.Lock()
		defer mu.Unlock()
		used -= bytes
	}
	var all sync.WaitGroup
	lent := make([]int, sessions)
	for id := range uint64(sessions) {
		all.Go(func() {
			var p purse
			have := uint64(0)
			for i := range uint64(rounds) {
				bytes := 1 + (i*7+id*13)%90
				if p.take(bytes) {
					lent[id]++
					took(bytes)
					have += bytes
				} else if r, ok, _ := l.Reserve("a", id, bytes); ok {
					if i%8 == 0 {
						fixture.Equal(t, l.Abort(id, r), nil, "abort")
						continue
					}
					took(bytes)
					have += bytes
					fixture.Equal(t, l.Commit(id, r, bytes), nil, "commit")
					l.Lend(id, &p)
				}
				runtime.Gosched() // lets the others ask meanwhile, even on one CPU
				if i%2 == 0 || have == 0 {
					continue
				}
				freed(have)
				if !p.put(have) {
					fixture.Equal(t, l.Free(id, have), nil, "free")
				}
				have = 0
			}
			freed(have)
			if !p.put(have) {
				fixture.Equal(t, l.Free(id, have), nil, "free")
			}
			l.End(id)
			l.Release(id)
		})
	}
	all.Wait()
	taken := 0
	for _, n := range lent {
		taken += n
	}
	if u := l.Usage("a"); most > limit || u.Committed+u.Reserved+u.Dead != 0 || u.Denied == 0 || taken == 0 {
		t.Errorf("%d of %d bytes at once, %d times from leases, and at the end %+v", most, limit, taken, u)
	}
}
