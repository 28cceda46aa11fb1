package host

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

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
