package policy

import (
	"os/user"
	"strconv"
)

// An unknown is a user or group that this host does not know.
type unknown struct {
	tenant, key, name string
	err               error
}

// lookUp returns the number of a user or group; the text may be a number
// already.
func lookUp(kind int, name string, known map[string]uint32) (uint32, error) {
	if id, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(id), nil
	}
	key := keys[kind] + ":" + name
	if id, ok := known[key]; ok {
		return id, nil
	}
	var text string
	if kind == byUser {
		u, err := user.Lookup(name)
		if err != nil {
			return 0, err
		}
		text = u.Uid
	} else {
		g, err := user.LookupGroup(name)
		if err != nil {
			return 0, err
		}
		text = g.Gid
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err == nil {
		known[key] = uint32(id)
	}
	return uint32(id), err
}
