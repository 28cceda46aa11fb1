package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits on names of users that /etc/passwd does not have.
const (
	mostUsers  = 4096
	freshNames = 10 * time.Minute // after which a name is asked for again
)

// SystemUser returns the name that the host's directories give a user: LDAP,
// SSSD and whatever else nsswitch.conf lists; "" if they know none. It can
// block for as long as they do.
func SystemUser(uid int) (string, error) {
	u, err := osuser.LookupId(strconv.Itoa(uid))
	if _, unknown := errors.AsType[osuser.UnknownUserIdError](err); unknown {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return u.Username, nil
}

// A directory holds the names of users that /etc/passwd does not have. Only
// learn waits for the answer of a server.
type directory struct {
	lookup func(uid int) (string, error) // nil: nobody has a name
	wake   chan struct{}

	mu    sync.Mutex
	users map[int]named
}

// named is the name of a user; "" if it is unknown.
type named struct {
	name string
	due  time.Time // when it is to be asked for
	used time.Time
}

func (n named) last() time.Time { return n.used }

// name returns the user's name as last heard; "" if there is none. It never
// blocks.
func (d *directory) name(uid int, now time.Time) string {
	if d.lookup == nil {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n, known := d.users[uid]
	if !known {
		if len(d.users) >= mostUsers {
			delete(d.users, oldest(d.users))
		}
		n.due = now
	}
	n.used = now
	d.users[uid] = n
	if !now.Before(n.due) {
		signal(d.wake)
	}
	return n.name
}

// learn asks for the names that are due. After a failure the old ones stay.
func (d *directory) learn(ctx context.Context) (failed error) {
	now := time.Now()
	var due []int
	d.mu.Lock()
	for uid, n := range d.users {
		if !now.Before(n.due) && now.Sub(n.used) < forget {
			due = append(due, uid)
		}
	}
	d.mu.Unlock()
	for _, uid := range due {
		if ctx.Err() != nil {
			return nil
		}
		name, err := d.lookup(uid)
		if err != nil {
			failed = err
		}
		d.mu.Lock()
		if n, known := d.users[uid]; known && err == nil {
			d.users[uid] = named{field(name), time.Now().Add(freshNames), n.used}
		}
		d.mu.Unlock()
	}
	return failed
}

// userName returns the name of a user, or its number while there is none.
func (t *Table) userName(uid int, now time.Time) string {
	name := (*t.users.Load())[uid]
	if name == "" {
		name = t.directory.name(uid, now)
	}
	if name == "" {
		name = strconv.Itoa(uid)
	}
	return name
}

// readUsers rereads the names of users; after a failure the old ones stay.
func (t *Table) readUsers() {
	users, err := parseUsers(filepath.Join(t.Root, "etc/passwd"))
	if err != nil {
		t.failures.add("passwd", err)
	}
	if err == nil || t.users.Load() == nil {
		t.users.Store(&users)
	}
}

// parseUsers returns user names by number from a passwd file; none if it is
// missing.
func parseUsers(path string) (map[int]string, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	users := map[int]string{}
	for line := range strings.Lines(string(content)) {
		parts := strings.Split(line, ":")
		if len(parts) < 7 || parts[0] == "" {
			continue
		}
		uid, err := strconv.Atoi(parts[2])
		if _, twice := users[uid]; err == nil && !twice {
			users[uid] = field(parts[0])
		}
	}
	return users, nil
}
