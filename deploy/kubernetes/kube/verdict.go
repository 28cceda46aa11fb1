package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	mostVerdict = 4 << 20 // bytes
	freshness   = 30 * time.Second
)

// A verdict is what is used of the agent's answer to GET /api/v1/health.
type verdict struct {
	Node   string    `json:"node"`
	Time   time.Time `json:"time"`
	Status string    `json:"status"` // of the node: the worst of its own and its GPUs'
	Reason string    `json:"reason"` // why the status is not known
	GPUs   []struct {
		GPU    string `json:"gpu"`
		UUID   string `json:"uuid"`
		Status string `json:"status"`
	} `json:"gpus"`
	Findings []struct {
		Check   string `json:"check"`
		Message string `json:"message"`
		Shadow  bool   `json:"shadow"`
		Entity  struct {
			Workload string `json:"workload"`
			Tenant   string `json:"tenant"`
		} `json:"entity"`
	} `json:"findings"` // the worst first
}

// A state is what a status means for a node or a device.
type state int

const (
	unknown state = iota
	healthy
	unhealthy
	forgotten // the agent knows no such GPU
)

// stateOf returns the state for a status of the agent. Warnings are healthy. A status that is not known
// here is unknown.
func stateOf(status string) state {
	switch status {
	case "ok", "suspect", "degraded":
		return healthy
	case "unhealthy", "failed":
		return unhealthy
	}
	return unknown
}

// agent asks the agent at its control socket, which needs neither its port nor a password.
func agent(socket string) func(context.Context) (verdict, error) {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	return func(ctx context.Context) (v verdict, err error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/api/v1/health", nil)
		if err != nil {
			return v, err
		}
		answer, err := client.Do(request)
		if err != nil {
			return v, err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(answer.Body, mostVerdict))
		if err == nil && answer.StatusCode != http.StatusOK {
			err = errors.New(answer.Status)
		}
		if err == nil {
			err = json.Unmarshal(text, &v)
		}
		if err == nil && v.Status == "" {
			err = errors.New("the answer is not a verdict")
		}
		return v, err
	}
}

// usable reports why a verdict says nothing about the node now.
func (v verdict) usable(node string, now time.Time) error {
	if v.Node != node {
		return fmt.Errorf("the agent judges %q, not %q: set NODE_NAME for both", v.Node, node)
	}
	if age := now.Sub(v.Time); age > freshness {
		return fmt.Errorf("the agent's last verdict is %v old", age.Round(time.Second))
	}
	return nil
}
