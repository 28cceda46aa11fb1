package host

import (
	"errors"
	"fmt"
	osuser "os/user"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// userOf returns the user's name of the process that has the PID.
func userOf(t *testing.T, table *Table, pid int) string {
	t.Helper()
	p := fixture.Value(table.Lookup(pid))(t)
	return p.User
}

// TestUsersOfDirectories follows a user that only a directory knows: its name
// arrives, outlives a failure, and changes; an unknown user has a number.
func TestUsersOfDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		var mu sync.Mutex
		asked, name, failure := map[int]int{}, "ada@example.org", error(nil)
		proc.set(1, in("/a.slice/a.service"))
		stranger := in("/a.slice/a.service")
		stranger.UID = 1001
		proc.set(2, stranger)
		table := runningWith(t, Options{Proc: proc, Root: t.TempDir(), Users: func(uid int) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[uid]++
			if uid == 1001 || failure != nil {
				return "", failure
			}
			return name, nil
		}})
		want := func(when, first, second string) {
			t.Helper()
			if a, b := userOf(t, table, 1), userOf(t, table, 2); a != first || b != second {
				t.Errorf("%s the users are %s and %s, want %s and %s", when, a, b, first, second)
			}
		}
		want("at first", "1000", "1001")
		synctest.Wait()
		time.Sleep(askEach)
		synctest.Wait()
		want("once asked", "ada@example.org", "1001")
		time.Sleep(freshNames / 2)
		want("later", "ada@example.org", "1001")
		synctest.Wait()
		mu.Lock()
		fixture.Equal(t, fmt.Sprint(asked), "map[1000:1 1001:1]", "within %v they were asked for", freshNames)
		failure, name = errors.New("no server"), "ada@example.com"
		mu.Unlock()
		time.Sleep(freshNames)
		want("when due", "ada@example.org", "1001")
		synctest.Wait()
		want("without a server", "ada@example.org", "1001")
		fixture.Equal(t, count(table)["users"], 1, "failures")
		mu.Lock()
		failure = nil
		mu.Unlock()
		time.Sleep(askAgain + time.Second)
		synctest.Wait()
		want("with a server", "ada@example.com", "1001")
	})
}

// TestHangingDirectory has a directory that does not answer: nobody waits, and it is asked once.
func TestHangingDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, asked := make(chan struct{}), 0
		defer close(hang)
		proc := &fakeProc{}
		for uid := range 100 {
			p := in("/a.slice/a.service")
			p.UID = 1000 + uid
			proc.set(1+uid, p)
		}
		table := runningWith(t, Options{Proc: proc, Root: t.TempDir(), Users: func(int) (string, error) {
			asked++
			<-hang
			return "late", nil
		}})
		began := time.Now()
		for range 10 {
			for uid := range 100 {
				fixture.Need(t, userOf(t, table, 1+uid), strconv.Itoa(1000+uid), "user %d is", 1000+uid)
			}
			fixture.Need(t, time.Since(began), 0, "they took")
			time.Sleep(freshNames)
			began = time.Now()
			synctest.Wait()
		}
		fixture.Equal(t, asked, 1, "the directory was asked … times at once")
	})
}

// TestManyUsersOfDirectories looks up more users than the table keeps.
func TestManyUsersOfDirectories(t *testing.T) {
	d := directory{lookup: func(int) (string, error) { return "x", nil }, wake: make(chan struct{}, 1),
		users: map[int]named{}}
	began := time.Now()
	for uid := range mostUsers + 10 {
		d.name(uid, began.Add(time.Duration(uid)*time.Millisecond))
	}
	if _, first := d.users[0]; len(d.users) != mostUsers || first {
		t.Errorf("%d users are kept, the first one of them: %v", len(d.users), first)
	}
}

func TestSystemUser(t *testing.T) {
	me, err := osuser.LookupId("0")
	if err != nil {
		t.Skip(err)
	}
	fixture.Equal(t, fixture.Value(SystemUser(0))(t), me.Username, "user 0 is")
	fixture.Equal(t, fixture.Value(SystemUser(4_000_000_000))(t), "", "an unknown user is")
}
