package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"gpusteward/collectors/host"
)

// storeVersion is the version of the files' form.
const storeVersion = 1

// maxStored bounds a file, in bytes: its content must fit in an agent's memory.
const maxStored = 16 << 20

// A Store keeps state over restarts: a file of JSON for each name. Safe for
// concurrent use of different names.
type Store struct {
	Dir      string // created if it is missing; empty: nothing is kept
	ReadOnly bool   // nothing is written, and an invalid file stays in place
}

type stored struct {
	Version int             `json:"version"`
	State   json.RawMessage `json:"state"`
}

// Save stores v as name, completely or not at all.
func (s Store) Save(name string, v any) error {
	if s.Dir == "" || s.ReadOnly {
		return nil
	}
	text, err := json.Marshal(map[string]any{"version": storeVersion, "state": v})
	if err != nil {
		return fmt.Errorf("encode the state %s: %w", name, err)
	}
	if len(text) > maxStored {
		return fmt.Errorf("keep the state %s: its %d bytes are more than the %d that are read back", name,
			len(text), maxStored)
	}
	return host.ReplaceFile(s.path(name), host.StateMode, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// Load sets v, a pointer, to the stored value of name. If there is none, or
// after an error, v keeps its value. An invalid file is moved aside, to
// NAME.json.bad: the error says so, and the next start finds no file.
func (s Store) Load(name string, v any) error {
	if s.Dir == "" {
		return nil
	}
	f, err := os.Open(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return host.Explain(fmt.Errorf("read the state: %w", err), host.Reads)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxStored+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read the state: %w", err)
	}
	fresh := reflect.New(reflect.TypeOf(v).Elem()) // a partial state is worse than none
	if err := decodeStored(text, fresh.Interface()); err != nil {
		if s.ReadOnly {
			return fmt.Errorf("state %s cannot be used: %w", name, err)
		}
		bad := s.path(name) + ".bad"
		return errors.Join(fmt.Errorf("state %s cannot be used, moved to %s: %w", name, bad, err),
			os.Rename(s.path(name), bad))
	}
	reflect.ValueOf(v).Elem().Set(fresh.Elem())
	return nil
}

func decodeStored(text []byte, v any) error {
	if len(text) > maxStored {
		return fmt.Errorf("it is larger than %d bytes", maxStored)
	}
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if s.Version != storeVersion {
		return fmt.Errorf("its version is %d, and this agent's is %d", s.Version, storeVersion)
	}
	return json.Unmarshal(s.State, v)
}

func (s Store) path(name string) string { return filepath.Join(s.Dir, name+".json") }
