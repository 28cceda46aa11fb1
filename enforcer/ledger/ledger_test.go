package ledger

import (
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"gpusteward/internal/fixture"
)

// reserves asks for bytes, and says whether they are to be reserved and how many are free then.
func reserves(t *testing.T, l *Ledger, name string, id, bytes uint64, is bool, left uint64, what string) (r uint64) {
	t.Helper()
	r, ok, free := l.Reserve(name, id, bytes)
	fixture.If(t, ok != is || (r != 0) != is || free != left,
		"%s: reserved %v as %d, and %d bytes are free; want %v and %d", what, ok, r, free, is, left)
	return r
}

func TestReserveWithinTheCap(t *testing.T) {
	var l Ledger
	l.SetCap("a", 100)
	r := reserves(t, &l, "a", 1, 60, true, 40, "60 of 100")
	reserves(t, &l, "a", 2, 41, false, 40, "41 of 40")
	reserves(t, &l, "a", 2, math.MaxUint64, false, 40, "all there is")
	fixture.Must(t, l.Commit(1, r, 50))
	fixture.Must(t, l.Abort(2, reserves(t, &l, "a", 2, 50, true, 0, "50 of 50")))
	fixture.Equal(t, l.Usage("a"), Usage{Committed: 50, Cap: 100, Peak: 50, Denied: 2}, "its use")
	if err := l.Free(1, 50); err != nil || l.Usage("a").Committed != 0 {
		t.Errorf("free: %v, %+v", err, l.Usage("a"))
	}
}

func TestWhatASessionGetsWrong(t *testing.T) {
	var l Ledger
	l.SetCap("a", 100)
	r, _, _ := l.Reserve("a", 1, 40)
	other, _, _ := l.Reserve("a", 2, 10)
	for _, c := range []struct {
		what      string
		got, want error
	}{
		{"commit of more", l.Commit(1, r, 41), errBytes},
		{"commit of another's", l.Commit(1, other+reservations, 1), errReservation},
		{"commit of none", l.Commit(1, 0, 0), errReservation},
		{"commit by nobody", l.Commit(9, r, 1), errSession},
		{"abort by nobody", l.Abort(9, r), errSession},
		{"free by nobody", l.Free(9, 1), errSession},
		{"free of what is not committed", l.Free(1, 1), errBytes},
		{"move of nobody", l.Move("b", 9), errSession},
		{"adopt of what cannot be", adopt(&l, "a", 1, math.MaxUint64), errBytes},
		{"adopt as another", adopt(&l, "b", 1, 1), errSession},
		{"commit", l.Commit(1, r, 40), nil},
		{"commit again", l.Commit(1, r, 40), errReservation},
		{"abort after commit", l.Abort(1, r), errReservation},
	} {
		fixture.If(t, !errors.Is(c.got, c.want), "%s: %v, not %v", c.what, c.got, c.want)
	}
	u := l.Usage("a")
	fixture.If(t, u.Committed != 40 || u.Reserved != 10, "%+v", u)
	err := l.Free(1, 1000)
	fixture.If(t, !errors.Is(err, errBytes), "%v", err)
	u = l.Usage("a")
	fixture.If(t, u.Committed != 0 || u.Reserved != 10, "after a lie: %+v", u)
}

func TestReservationsAreBounded(t *testing.T) {
	var l Ledger
	seen := map[uint64]bool{}
	var last uint64
	for range reservations {
		r, ok, _ := l.Reserve("a", 1, 1)
		fixture.Stop(t, !ok || r == 0 || seen[r], "reservation %d: %v", r, ok)
		seen[r], last = true, r
	}
	l.SetCap("a", 1000)
	reserves(t, &l, "a", 1, 1, false, 1000-reservations, "one more than there may be")
	fixture.Equal(t, l.Usage("a").Denied, 1, "refusals")
	reserves(t, &l, "a", 2, 1, true, 1000-reservations-1, "another session")
	l.Abort(1, last)
	r := reserves(t, &l, "a", 1, 1, true, 1000-reservations-1, "after an abort")
	fixture.If(t, seen[r], "%d was given twice", r)
}

func TestDeadBytesStayUntilReleased(t *testing.T) {
	var l Ledger
	l.SetCap("a", 100)
	r, _, _ := l.Reserve("a", 1, 40)
	l.Commit(1, r, 40)
	l.Reserve("a", 1, 20) // the driver may have given it when the process died
	fixture.Equal(t, l.Release(1), 0, "… bytes of a session that lives were released")
	l.End(1)
	l.End(1)
	fixture.Equal(t, l.Usage("a"), Usage{Dead: 60, Cap: 100, Peak: 60}, "its use")
	reserves(t, &l, "a", 2, 41, false, 40, "a successor was let in to what is held still")
	reserves(t, &l, "a", 1, 1, false, 0, "a dead session")
	// What a request lacks, with another tenant's dead, and without.
	stays := false
	lacks := func(what, name string, bytes uint64, want Lack) {
		t.Helper()
		was, got := l.Usage(name).Denied, Lack(-1)
		_, ok, _ := l.ReserveUnless(name, 2, bytes, stays, func(is Lack) bool { got = is; return true })
		fixture.If(t, ok || got != want, "%d of %s, %s: granted %v, lack %d", bytes, name, what, ok, got)
		fixture.Equal(t, l.Usage(name).Denied, was, "%s: … refusals", what)
	}
	lacks("a part is held by the dead", "a", 100, LacksDying)
	lacks("more than the cap", "a", 101, LacksCap)
	l.SetCapacity(90)
	lacks("more than the GPU", "a", 100, LacksRoom)
	adopt(&l, "b", 3, 30)
	lacks("another's is in the way", "a", 61, LacksRoom)
	l.End(3)
	lacks("another's is dead, too", "a", 61, LacksDying)
	l.Stay(3)
	l.Stay(3)
	lacks("it stays", "a", 61, LacksRoom)
	l.Listed(10, 3)
	lacks("and shrinks", "a", 80, LacksDying)
	l.Release(3)
	stays = true
	lacks("nothing is guaranteed to what stays", "a", 1, LacksCap)
	l.SetReserved("a", 70)
	lacks("the guarantee is held by the dead", "a", 70, LacksDying)
	stays = false
	l.SetReserved("a", 0)
	l.SetCapacity(0)
	fixture.If(t, !errors.Is(l.Free(1, 1), errSession), "a dead session frees bytes")
	n := l.Release(1)
	fixture.If(t, n != 60 || l.Release(1) != 0, "%d bytes released", n)
	reserves(t, &l, "a", 2, 100, true, 0, "after the release")
}

// One of a tenant's two sessions moves to another tenant, above its cap, and goes on there. That
// tenant's own session then ends. The first tenant's bytes, and the bytes left for others, stay right.
func TestMove(t *testing.T) {
	var l Ledger
	l.SetCapacity(100)
	l.SetCap("b", 10)
	adopt(&l, "a", 1, 20)
	r, _, _ := l.Reserve("a", 1, 5)
	l.Reserve("a", 2, 3)
	adopt(&l, "b", 3, 7)
	for range 2 { // the second time to itself
		fixture.Must(t, l.Move("b", 1))
		if a, b := l.Usage("a"), l.Usage("b"); a != (Usage{Reserved: 3, Peak: 20}) ||
			b != (Usage{Committed: 27, Reserved: 5, Cap: 10, Peak: 27}) {
			t.Errorf("a %+v, b %+v", a, b)
		}
	}
	fixture.Must(t, l.Commit(1, r, 5))
	l.SetCap("b", 0)
	reserves(t, &l, "c", 4, 66, false, 65, "66 of the 65 that are left")
	l.End(3)
	l.Release(3)
	fixture.Equal(t, l.Usage("b"), Usage{Committed: 25, Peak: 32}, "b … after the end of its first session")
	for id := range uint64(5) {
		l.End(id)
		l.Release(id)
	}
	fixture.If(t, len(l.tenants) != 0 || l.claims != 0,
		"%d tenants and claims of %d are kept of nobody", len(l.tenants), l.claims)
}

// A tenant may have as many bytes as a counter holds, and not one more.
func TestCountsDoNotOverflow(t *testing.T) {
	const committed, reserved, dead = 1, 2, 4
	const left = math.MaxUint64 - committed - reserved - dead
	for _, c := range []struct {
		more uint64
		want error
	}{
		{left - 1, nil},
		{left, nil},
		{left + 1, errBytes},
		{left + 2, errBytes},
		{math.MaxUint64, errBytes},
	} {
		l := ledgerWith("a", committed, reserved, dead)
		if err := adopt(l, "a", 9, c.more); !errors.Is(err, c.want) {
			t.Errorf("adopt %d of %d: %v", c.more, uint64(left), err)
		}
		l = ledgerWith("a", committed, reserved, dead)
		adopt(l, "b", 9, c.more-10)
		r, _, _ := l.Reserve("b", 9, 10)
		if err := l.Move("a", 9); !errors.Is(err, c.want) {
			t.Errorf("move %d to where %d are left: %v", c.more, uint64(left), err)
		}
		if n := l.Session(9); n != c.more || r == 0 || l.Abort(9, r) != nil {
			t.Errorf("%d of %d bytes are the session's after its move", n, c.more)
		}
	}
}

// adopt adopts a session whose process the driver lists with all its bytes.
func adopt(l *Ledger, name string, id, bytes uint64) error {
	err := l.Adopt(name, id, bytes)
	l.Listed(math.MaxUint64, id)
	return err
}

// ledgerWith returns a ledger in which a tenant has the given bytes.
func ledgerWith(name string, committed, reserved, dead uint64) *Ledger {
	var l Ledger
	adopt(&l, name, 1, committed)
	l.Reserve(name, 1, reserved)
	adopt(&l, name, 2, dead)
	l.End(2)
	return &l
}

// The sum of all tenants' possible claims on a GPU does not overflow.
func TestClaimsDoNotOverflow(t *testing.T) {
	t.Parallel()
	var l Ledger
	l.SetCapacity(1 << 40)
	for i := range 1 << 16 {
		l.SetReserved(strconv.Itoa(i), math.MaxUint64)
	}
	reserves(t, &l, "a", 1, 1, false, 0, "the ledger gave away memory that others are guaranteed")
}

func TestEndedSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	var l Ledger
	for id := range uint64(1000) {
		name := string(rune('a' + id%26))
		adopt(&l, name, id, 1)
		l.End(id)
		l.Release(id)
	}
	l.SetCap("x", 1)
	l.SetCap("x", 0)
	l.SetReserved("y", 1)
	l.SetReserved("y", 0)
	fixture.If(t, len(l.tenants) != 0 || len(l.sessions) != 0,
		"%d tenants, %d sessions", len(l.tenants), len(l.sessions))
}

// Others may have what the driver does not list, but for what is guaranteed.
func TestUnlistedMemoryHasNoClaim(t *testing.T) {
	var l Ledger
	l.SetCapacity(100)
	adopt(&l, "a", 1, 90)
	l.SetUnlisted("a", 80)
	l.SetUnlisted("nobody", 80)
	for guaranteed, want := range map[uint64]uint64{0: 90, 5: 90, 30: 70} {
		l.SetReserved("a", guaranteed)
		_, ok, free := l.Reserve("b", 2, 91)
		fixture.If(t, ok || free != want, "with a guarantee of %d: %v %d", guaranteed, ok, free)
	}
	reserves(t, &l, "a", 1, 11, false, 10, "its own")
	l.SetReserved("a", 95)
	if _, ok, free := l.ReserveUnless("a", 3, 5, true, nil); !ok || free != 0 {
		t.Errorf("what stays within the guarantee: %v %d", ok, free)
	}
}

// Guaranteed memory is kept for an absent tenant, which gets it when it comes.
func TestReserved(t *testing.T) {
	var l Ledger
	l.SetReserved("b", 40)
	reserves(t, &l, "a", 1, 1000, true, math.MaxUint64-1000, "before the capacity is known")
	l.End(1)
	l.Release(1)
	l.SetCapacity(100)
	reserves(t, &l, "a", 2, 61, false, 60, "61 of 100, of which 40 are kept")
	r := reserves(t, &l, "a", 2, 60, true, 0, "60 of 100, of which 40 are kept")
	s := reserves(t, &l, "b", 3, 30, true, 10, "30 of its own 40")
	reserves(t, &l, "b", 3, 11, false, 10, "11 of the last 10")
	l.Abort(2, r)
	reserves(t, &l, "b", 3, 70, true, 0, "with nobody else there")
	l.Abort(3, s)
	// Others took more than there is: the driver may refuse, and the books do not.
	adopt(&l, "c", 4, 1000)
	l.SetReserved("d", 50)
	l.Abort(5, reserves(t, &l, "d", 5, 20, true, 30, "20 of its own 50")) // and the driver refuses
	reserves(t, &l, "d", 5, 51, false, 50, "more than its own")
	l.SetCap("d", 10)
	reserves(t, &l, "d", 5, 20, false, 10, "more than its cap")
	fixture.Equal(t, l.Usage("d"), Usage{Cap: 10, Guaranteed: 50, Denied: 2, Asked: 2, Missed: 2}, "its use")
	u := l.Usage("b")
	fixture.If(t, u.Asked != 1 || u.Missed != 1 || u.Reserved != 70, "%+v", u)
	l.SetReserved("d", 0)
	n := l.Session(3)
	fixture.If(t, n != 70 || l.Session(77) != 0, "%d bytes of a session that has 70", n)
}

// The cases say which bytes count as asked of a guarantee of 10, and as missed after an abort. The slot of the session
// and its earlier bytes make no difference.
func TestAskedAndMissed(t *testing.T) {
	for _, c := range []struct {
		what                 string
		had                  uint64 // in the same slot, and committed
		bytes, asked, missed uint64
	}{
		{"nothing", 1, 0, 1, 0},
		{"one byte", 1, 1, 2, 1},
		{"all that is left", 1, 9, 2, 1},
		{"more", 1, 10, 1, 0},
		{"after more", 100, 1, 0, 0},
		{"after nothing", 0, 10, 1, 1},
	} {
		for before := range 3 {
			var l Ledger
			l.SetReserved("a", 10)
			for range before {
				l.Reserve("a", 1, 0)
			}
			r, _, _ := l.Reserve("a", 1, c.had)
			l.Commit(1, r, c.had)
			r, _, _ = l.Reserve("a", 1, c.bytes)
			fixture.Must(t, l.Abort(1, r))
			if u := l.Usage("a"); u.Asked != c.asked || u.Missed != c.missed {
				t.Errorf("%s in slot %d: %+v", c.what, before, u)
			}
		}
	}
}

// A request that moved with its session does not count for the other tenant's guarantee.
func TestMovedRequestsAreNotMissed(t *testing.T) {
	var l Ledger
	l.SetReserved("a", 10)
	r, _, _ := l.Reserve("a", 1, 10)
	fixture.Must(t, l.Move("b", 1))
	l.Abort(1, r)
	a, b := l.Usage("a"), l.Usage("b")
	fixture.If(t, a.Asked != 1 || a.Missed+b.Missed != 0, "a %+v, b %+v", a, b)
}

// A model is the simplest correct ledger, without any optimisation.
type model struct {
	l        Ledger
	open     map[uint64]map[uint64]uint64 // session, reservation: bytes
	have     map[uint64]uint64            // session: committed
	dead     map[uint64]uint64
	stays    map[uint64]bool // dead, and not expected back
	purses   [4]purse        // leases of three sessions of a, and of one of b
	capacity uint64
	entered  uint32
}

// admits reports whether tenant a may have more bytes: within its cap, and within its guarantee or the bytes that
// remain beyond the other tenant's use and guarantee.
func (m *model) admits(bytes uint64) bool {
	lack, _ := m.lack(bytes, 0, false)
	return bytes == 0 || !lack
}

// lack reports whether tenant a lacks bytes, without those in leases and so many of the dead, and whether its cap is why.
func (m *model) lack(bytes, dying uint64, stays bool) (lacks, capped bool) {
	a, b := m.l.Usage("a"), m.l.Usage("b")
	after := a.Committed + a.Reserved - a.Leased + a.Dead - dying + bytes
	fits := m.capacity == 0 || after <= a.Guaranteed || after+max(b.Committed+b.Reserved-b.Leased, b.Guaranteed) <= m.capacity
	capped = a.Cap != 0 && after > a.Cap || stays && after > a.Guaranteed
	return !fits || capped, capped
}

// operate applies one operation, taken from three bytes, to the ledger and the model: three sessions of tenant a,
// beside tenant b. It returns whether the operation exceeded the cap on purpose.
func (m *model) operate(t *testing.T, op, who, arg byte) (exceeds bool) {
	id, bytes := uint64(who%3), uint64(arg)
	_, gone := m.dead[id]
	var r, reserved uint64
	for key, n := range m.open[id] {
		r, reserved = max(r, key), max(reserved, n)
	}
	reserved = m.open[id][r]
	before := m.l.Usage("a")
	used := before.Committed + before.Reserved + before.Dead
	lender := []uint64{0, 1, 2, 9}[who/3%4]
	lent := &m.purses[who/3%4]
	switch op % 19 {
	case 13:
		if s := m.l.sessions[lender]; s != nil && !s.ended && s.adopted == s.claimed {
			if m.l.Usage(s.name); lender != 9 && lent.take(1) {
				m.have[lender]++
			}
			want := max(lent.Idle(), min(m.l.free(s.tenant)/8, 256<<20))
			m.l.Lend(lender, lent)
			fixture.Need(t, lent.Idle(), want, "lent …")
		}
	case 14:
		if lent.take(bytes) && lender != 9 {
			has := m.l.sessions[lender].committed + m.l.sessions[lender].reserved - m.l.sessions[lender].leased
			m.have[lender] += bytes
			fixture.Need(t, m.l.Session(lender), has+bytes, "the session has …")
		}
	case 15:
		if bytes = min(bytes, m.have[lender]); lender != 9 && lent.put(bytes) {
			m.have[lender] -= bytes
		}
	case 17:
		if gone {
			m.l.Listed(bytes, id)
			m.stays[id], m.dead[id] = m.stays[id] || who&32 != 0, min(m.dead[id], bytes)
		}
		if who&32 != 0 {
			m.l.Stay(id)
		}
		if m.entered++; who&1 == 0 {
			m.l.Enter("a")
		} else if m.entered--; m.entered > 0 {
			m.l.Leave("a")
			m.entered--
		}
	case 18:
		dying, got, want, stays := uint64(0), Lack(-1), LacksDying, who&64 != 0
		for id, n := range m.dead {
			if !m.stays[id] {
				dying += n
			}
		}
		lacks, _ := m.lack(bytes, 0, stays)
		if gone || len(m.open[id]) == reservations {
			lacks, want = true, -1
		} else if short, capped := m.lack(bytes, dying, stays); bytes == 0 || !lacks {
			lacks, want = false, -1
		} else if capped {
			want = LacksCap
		} else if short || dying == 0 {
			want = LacksRoom
		}
		n, ok, _ := m.l.ReserveUnless("a", id, bytes, stays, func(l Lack) bool { got = l; return true })
		fixture.Stop(t, ok == lacks || (n != 0) != ok || got != want, "reserve %d with %+v: %v, lacks %d, not %d", bytes, before, ok, got, want)
		m.opened(id, n, bytes)
	case 0, 1, 2:
		want := !gone && len(m.open[id]) < reservations && m.admits(bytes)
		n, ok, free := m.l.Reserve("a", id, bytes)
		fixture.Need(t, ok, want, "reserve %d with %+v of %d: …, free %d", bytes, before, m.capacity, free)
		fixture.Stop(t, !gone && !ok && m.idle() == 0 && len(m.open[id]) < reservations && (!m.admits(free) || m.admits(free+1)),
			"reserve %d with %+v of %d: %d are said to be free", bytes, before, m.capacity, free)
		m.opened(id, n, bytes)
	case 3:
		if err := m.l.Commit(id, r, bytes); err == nil {
			fixture.Stop(t, gone || bytes > reserved || r == 0, "committed %d of %d", bytes, reserved)
			m.have[id] += bytes
			delete(m.open[id], r)
		}
	case 4:
		if m.l.Abort(id, r) == nil {
			delete(m.open[id], r)
		}
	case 5, 16:
		if m.purses[id].take(1) {
			m.have[id]++
		}
		free := m.l.Free
		if op%19 == 16 {
			free = m.l.Failed
		}
		if err := free(id, bytes); (err == nil) != (m.have[id] >= bytes) && !gone && m.have[id] > 0 {
			t.Fatalf("free %d of %d: %v", bytes, m.have[id], err)
		}
		m.have[id] -= min(bytes, m.have[id])
	case 6:
		idle := m.idle()
		m.l.SetCap("a", 10*bytes)
		fixture.Stop(t, bytes == 0 && m.idle() != idle, "no cap recalls leases")
		exceeds = true
	case 9:
		m.l.SetReserved([]string{"a", "b"}[who&1], 3*bytes)
	case 10:
		m.capacity = 10 * bytes
		m.l.SetCapacity(m.capacity)
	case 11:
		_, _, _ = m.l.Reserve("b", 9, bytes)
	case 12:
		_ = adopt(&m.l, "b", 9, bytes)
		_ = m.l.Free(9, 2*bytes)
	case 7:
		if adopt(&m.l, "a", id, bytes) == nil {
			m.have[id] += bytes
		}
		exceeds = true
	case 8:
		if gone {
			fixture.Need(t, m.l.Release(id), m.dead[id], "released …")
			delete(m.dead, id)
			delete(m.stays, id)
			break
		}
		if m.l.sessions[id] == nil {
			break
		}
		m.l.End(id)
		m.dead[id] = m.have[id]
		for _, n := range m.open[id] {
			m.dead[id] += n
		}
		delete(m.open, id)
		delete(m.have, id)
	}
	m.check(t, used, exceeds)
	return exceeds
}

// opened records a reservation; 0 is none.
func (m *model) opened(id, reservation, bytes uint64) {
	if m.open[id] == nil {
		m.open[id] = map[uint64]uint64{}
	}
	if reservation != 0 {
		m.open[id][reservation] = bytes
	}
}

// idle returns the bytes in leases.
func (m *model) idle() (sum uint64) {
	for i := range m.purses {
		sum += m.purses[i].Idle()
	}
	return sum
}

func (m *model) check(t *testing.T, before uint64, exceeds bool) {
	t.Helper()
	var want Usage
	for id, n := range m.have {
		want.Committed += n
		for _, n := range m.open[id] {
			want.Reserved += n
		}
	}
	for id, rs := range m.open {
		if _, counted := m.have[id]; !counted {
			for _, n := range rs {
				want.Reserved += n
			}
		}
	}
	for _, n := range m.dead {
		want.Dead += n
	}
	u := m.l.Usage("a")
	want.Leased = m.idle() - m.purses[3].Idle()
	fixture.Stop(t, u.Committed != want.Committed || u.Reserved-u.Leased != want.Reserved || u.Dead != want.Dead ||
		u.Leased != want.Leased || u.Processes != m.entered ||
		u.Peak < u.Committed+u.Dead && u.Cap != 0,
		"%+v, not %+v", u, want)
	claims := uint64(0)
	for _, o := range m.l.tenants {
		claims += min(max(o.used(), o.Guaranteed), mostBytes)
	}
	fixture.Stop(t, claims != m.l.claims || u.Missed > u.Asked, "claims of %d, not %d; %+v", m.l.claims, claims, u)
	if used := u.Committed + u.Reserved + u.Dead; u.Cap != 0 && used > u.Cap && used > before && !exceeds {
		t.Fatalf("over the cap: %+v, before %d", u, before)
	}
}

func play(t *testing.T, ops []byte) {
	m := &model{open: map[uint64]map[uint64]uint64{}, have: map[uint64]uint64{}, dead: map[uint64]uint64{}, stays: map[uint64]bool{}}
	for ; len(ops) >= 3; ops = ops[3:] {
		m.operate(t, ops[0], ops[1], ops[2])
	}
}

func TestRandomOperations(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		ops := make([]byte, 3*1000)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		play(t, ops)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{6, 0, 20, 0, 0, 100, 3, 0, 90, 5, 0, 100, 8, 0, 0, 8, 0, 0})
	f.Fuzz(play)
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	var l Ledger
	l.SetCap("a", 1<<30)
	work := func() {
		r, _, _ := l.Reserve("a", 1, 4096)
		l.Commit(1, r, 4096)
		l.Free(1, 4096)
	}
	work()
	fixture.Equal(t, testing.AllocsPerRun(1000, work), 0, "allocations")
}

// The bytes that a session claims count up to the bytes that the driver lists for its process, now and later.
func TestWhatIsListedBoundsWhatIsAdopted(t *testing.T) {
	var l Ledger
	l.SetCapacity(100)
	have := func(what string, committed, dead, first, second uint64) {
		t.Helper()
		if u := l.Usage("a"); u.Committed != committed || u.Dead != dead || l.Session(1) != first ||
			l.Session(2) != second || l.claims != committed+dead {
			t.Errorf("%s: %+v, %d and %d, claims of %d", what, u, l.Session(1), l.Session(2), l.claims)
		}
	}
	l.Adopt("a", 1, 1000)
	have("not listed yet", 0, 0, 0, 0)
	l.Listed(30, 1)
	have("listed", 30, 0, 30, 0)
	r, _, _ := l.Reserve("a", 1, 20)
	l.Commit(1, r, 20)
	l.Adopt("a", 2, 40)
	l.Listed(50, 2, 1)
	have("two of one process, and the latest has most", 70, 0, 30, 40)
	l.Listed(200, 2)
	have("no more than it said", 70, 0, 30, 40)
	l.End(1)
	l.Listed(90, 2, 1)
	have("one has ended", 40, 50, 50, 40)
	l.Listed(0, 2, 1)
	have("the driver lists it no more", 0, 0, 0, 0)
	l.Listed(90, 2, 1)
	have("it has nothing again", 40, 0, 0, 40)
	l.Listed(25, 2)
	fixture.Must(t, l.Free(2, 10))
	have("what it gives back was not booked yet", 25, 0, 0, 25)
	fixture.Must(t, l.Free(2, 20))
	have("and some was", 10, 0, 0, 10)
	err := l.Free(2, 11)
	fixture.If(t, !errors.Is(err, errBytes), "%v", err)
	have("it gives back more than it has", 0, 0, 0, 0)
	l.Release(1)
	have("it is released", 0, 0, 0, 0)
	l.Listed(5, 1, 2, 3)
	have("nothing is left to book", 0, 0, 0, 0)

	var p purse
	l = Ledger{capacity: 1000}
	reserves(t, &l, "a", 1, 10, true, 990, "10 of 1000")
	l.Lend(1, &p)
	p.take(20)
	l.Adopt("a", 2, 500)
	l.Listed(100, 99, 1, 2)
	fixture.Equal(t, [2]uint64{l.Session(2), p.Idle()}, [2]uint64{70, 990/8 - 20}, "listed beside 20 of a lease and 10 reserved, and idle")
	l.Enter("b")
	l.Leave("b")
	fixture.Equal(t, len(l.tenants), 1, "tenants")
}
