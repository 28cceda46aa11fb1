package gemini

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestBadOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	_ = os.WriteFile(good, []byte(two), 0o644)
	_ = os.WriteFile(bad, []byte("two\na 1 1 1\n"), 0o644)
	for want, o := range map[string]Options{
		"lacks an address or":     {File: good, Listen: ":50052"},
		"listen: ":                {File: good, Listen: "localhost"},
		"turn: 1ns":               {File: good, Turn: 1},
		"bad: line 1: \"two\" is": {File: bad, Listen: "127.0.0.1:0"},
		"no such file":            {File: filepath.Join(dir, "none"), Listen: "127.0.0.1:0"},
		"lacks an address or a":   {File: good, Listen: "127.0.0.1:"},
		"unknown port":            {File: good, Listen: "127.0.0.1:no-such-port"},
		"listen: address 70000":   {File: good, Listen: "127.0.0.1:70000"},
		"file: \"table\" is not":  {File: "table"},
		"must not be negative":    {File: good, Connections: -1},
	} {
		fixture.Fails(t, fixture.Error(New(o)), want, "%+v", o)
	}
	o := Options{File: good}
	if err := o.Check(); err != nil || o.Listen != "127.0.0.1:50052" {
		t.Errorf("%+v, %v", o, err)
	}
	o = Options{File: good, Role: Scheduler}
	if err := o.Check(); err != nil || o.Listen != "127.0.0.1:50051" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestOtherAddressIsToldOf(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := start(t, two, Options{Listen: "0.0.0.0:0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	fixture.Contains(t, log.String(), "no authentication", "the log says")
	_ = s
}
