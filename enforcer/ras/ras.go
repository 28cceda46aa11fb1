// Package ras asks the RAS service of NCCL (2.24 and later) how far the ranks
// of a job are, and judges successive answers: which ranks have not entered a
// collective that others have entered.
//
// Every process of a job serves, and all processes of a user share one port. The
// kernel chooses the process that answers, so successive answers may come from
// different jobs.
package ras

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"gpusteward/internal/worker"
)

// Bounds of a question.
const (
	limit   = 5 * time.Second
	hello   = time.Second // until a server greets; one that is stopped never does
	gather  = 3           // s that the server waits for the other processes of its job
	maxSize = 8 << 20     // bytes of an answer
	// A server may be any program of any user.
	maxRanks  = 1 << 16      // and communicators
	maxNames  = 64           // of collectives
	maxValues = 4 * maxRanks // of an answer as JSON; a real one has 35 bytes for each

	maxChildren = 2         // that ask, with one that was given up
	maxChild    = 256 << 20 // bytes of one's memory
)

// A Status is the answer of one job.
type Status struct {
	Version       string // of NCCL; empty: not said
	Communicators []Communicator
}

// A Communicator is one of a job's. An answer as text has only those in which
// something is unusual.
type Communicator struct {
	ID      string
	Closing bool // some ranks finalize, destroy or abort it
	Ranks   []Rank
}

// A Rank is one of a communicator's.
type Rank struct {
	Rank    int // -1: the text says only that some ranks have these counts
	Host    string
	PID     int               // in its own namespace
	Missing bool              // its process does not answer
	Counts  map[string]uint64 // collectives that it has launched, by name; nil: unknown
}

// Size returns the number of ranks in the answer, in all communicators.
func (s Status) Size() (ranks int) {
	for _, c := range s.Communicators {
		ranks += len(c.Ranks)
	}
	return ranks
}

// asking are the children that ask and parse the answer: any program may serve it.
var asking = worker.Kind{Command: worker.Begins(work), Running: 1, Children: maxChildren, Limit: limit + time.Second,
	Memory: maxChild, Output: maxSize, Confined: true}

// work is the work of a child.
const work = "ask-nccl"

func init() {
	worker.Register(work, func(args []string) error {
		s, err := inquire(context.Background(), args[0])
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(s)
	})
}

// Ask asks a process that listens at the address, in a child process. It takes at most 5 s.
func Ask(ctx context.Context, address string) (s Status, err error) {
	out, err := asking.Do(ctx, worker.Order{Args: []string{address}})
	if err != nil {
		return s, fmt.Errorf("ask NCCL's RAS: %w", err)
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return Status{}, fmt.Errorf("ask NCCL's RAS: its child process wrote no answer: %w", err)
	}
	return s, nil
}

// inquire asks. If one does not greet, the kernel may choose another one the next time.
func inquire(ctx context.Context, address string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		text, err := ask(ctx, address)
		switch {
		case err == nil:
			return parse(text)
		case !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil:
			return Status{}, err
		}
	}
}

// ask asks the process that the kernel chooses.
func ask(ctx context.Context, address string) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to NCCL's RAS: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	text, err := talk(conn)
	if err != nil {
		return nil, fmt.Errorf("ask NCCL's RAS: %w", err)
	}
	return text, nil
}

// talk returns what a server answers.
func talk(conn net.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(hello)); err != nil {
		return nil, err
	}
	bounded := &io.LimitedReader{R: conn, N: maxSize}
	in := bufio.NewReader(bounded)
	say := func(line string) (string, error) {
		if _, err := io.WriteString(conn, line+"\n"); err != nil {
			return "", err
		}
		return in.ReadString('\n')
	}
	greeting, err := say("client protocol 2")
	if err == nil && !strings.HasPrefix(greeting, "SERVER PROTOCOL ") {
		err = fmt.Errorf("it answers %.40q", greeting)
	}
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	// A server before 2.28 knows no formats: it reports an error and answers in text.
	for _, line := range []string{fmt.Sprint("timeout ", gather), "set format json"} {
		if _, err := say(line); err != nil {
			return nil, err
		}
	}
	if _, err := io.WriteString(conn, "verbose status\n"); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(in)
	if err == nil && bounded.N == 0 {
		err = errors.New("the answer is too long")
	}
	return text, err
}

// parse reads an answer in either form. It may change the text.
func parse(text []byte) (Status, error) {
	switch {
	case bytes.HasPrefix(text, []byte("{")):
		return parseJSON(text)
	case bytes.HasPrefix(text, []byte("NCCL version ")):
		return parseText(string(text)), nil
	}
	return Status{}, fmt.Errorf("NCCL's RAS answers %.40q", text)
}
