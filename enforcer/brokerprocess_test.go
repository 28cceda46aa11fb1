package enforcer_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/fixture"
)

// A terms is what a tenant may use of each GPU.
type terms struct {
	Name string
	broker.Quota
}

// A book is a policy: a process is the tenant that it asks for, if the book has it.
type book []terms

func (b book) Tenant(_ broker.Facts, wished string) (string, error) {
	if !slices.Contains(b.Tenants(), wished) {
		return "", errors.New("no such tenant")
	}
	return wished, nil
}

func (b book) Quota(tenant, _ string) (q broker.Quota) {
	for _, t := range b {
		if t.Name == tenant {
			q = t.Quota
		}
	}
	return q
}

func (b book) Tenants() (names []string) {
	for _, t := range b {
		names = append(names, t.Name)
	}
	return names
}

// TestBrokerProcess is not a test but the broker's process: the test binary runs itself with GS_TEST_SOCKET set. It
// answers each line of stdin with its statistics. A line with terms in JSON replaces the terms. The process ends with
// its stdin, so it does not outlive its parent.
func TestBrokerProcess(t *testing.T) {
	socket := os.Getenv("GS_TEST_SOCKET")
	if socket == "" {
		t.Skip("run by the other tests")
	}
	var tenants book
	fixture.Must(t, json.Unmarshal([]byte(os.Getenv("GS_TEST_TENANTS")), &tenants))
	inFlight, _ := time.ParseDuration(os.Getenv("GS_IN_FLIGHT"))
	observe := new(jobs.Observer).Observe
	if os.Getenv("GS_TEST_TRACE") == "off" { // to measure what a trace costs
		observe = nil
	}
	b := fixture.Value(broker.New(broker.Options{
		Socket: socket, InFlight: inFlight, // GS_IN_FLIGHT overrides it
		Observe: observe,
		Policy:  tenants, FailClosed: os.Getenv("GS_TEST_FAIL") == "closed",
		Slices: os.Getenv("GS_TEST_SLICES") == "auto",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}))(t)
	fixture.Running(t, b.Run)
	fmt.Println("listening")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if line := lines.Bytes(); bytes.HasPrefix(line, []byte("[")) {
			var others book
			fixture.Must(t, json.Unmarshal(line, &others))
			b.Reload(others)
			fmt.Println("reloaded")
			continue
		}
		raw := fixture.Value(json.Marshal(b.Stats()))(t)
		fmt.Printf("stats %s\n", raw)
	}
}
