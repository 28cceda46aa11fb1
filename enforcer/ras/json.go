package ras

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// document is an answer of NCCL 2.28.9, as far as it matters.
type document struct {
	Version       string `json:"nccl_version"`
	Communicators []struct {
		Hash      string      `json:"hash"`
		Secondary string      `json:"secondary_hash"`
		Ranks     []rankEntry `json:"ranks"`
		Missing   []rankEntry `json:"missing_ranks"`
	} `json:"communicators"`
}

type rankEntry struct {
	Rank   int    `json:"rank"`
	Host   string `json:"host"`
	PID    int    `json:"pid"`
	Status struct {
		InitState    int  `json:"init_state"`
		AsyncError   int  `json:"async_error"`
		Finalize     bool `json:"finalize_called"`
		Destroy      bool `json:"destroy_flag"`
		Abort        bool `json:"abort_flag"`
		Unresponsive bool `json:"unresponsive"`
		Dead         bool `json:"considered_dead"`
	} `json:"status"`
	Counts map[string]uint64 `json:"collective_counts"`
}

// mend puts in the comma that NCCL 2.28.9 forgets before the status of a missing
// rank, in place of a space.
func mend(text []byte) {
	status := []byte(`"status":`)
	for from := 0; ; from += len(status) {
		next := bytes.Index(text[from:], status)
		if next < 0 {
			return
		}
		from += next
		end := len(bytes.TrimRight(text[:from], " \t\r\n"))
		if 0 < end && end < from && '0' <= text[end-1] && text[end-1] <= '9' {
			text[end] = ','
		}
	}
}

var errRanks = errors.New("NCCL's RAS reports too many ranks")

func parseJSON(text []byte) (Status, error) {
	values := 0 // at most: each follows one of these
	for _, before := range []string{",", "[", "{"} {
		values += bytes.Count(text, []byte(before))
	}
	if values > maxValues { // the shortest take 30 times as much memory as text
		return Status{}, errRanks
	}
	mend(text)
	var d document
	if err := json.Unmarshal(text, &d); err != nil {
		return Status{}, fmt.Errorf("understand NCCL's RAS: %w", err)
	}
	ranks := len(d.Communicators)
	for _, c := range d.Communicators {
		ranks += len(c.Ranks) + len(c.Missing)
	}
	if ranks > maxRanks {
		return Status{}, errRanks
	}
	s := Status{Version: d.Version}
	for _, from := range d.Communicators {
		c := Communicator{ID: from.Hash + from.Secondary, Ranks: make([]Rank, 0, len(from.Ranks)+len(from.Missing))}
		for _, r := range from.Ranks {
			if len(r.Counts) > maxNames {
				return Status{}, errors.New("NCCL's RAS reports too many collectives")
			}
			c.Closing = c.Closing || r.Status.InitState != 0 || r.Status.AsyncError != 0 || r.Status.Finalize ||
				r.Status.Destroy || r.Status.Abort
			c.Ranks = append(c.Ranks, Rank{Rank: r.Rank, Host: r.Host, PID: r.PID, Counts: r.Counts})
		}
		for _, r := range from.Missing {
			gone := r.Status.Unresponsive || r.Status.Dead
			c.Closing = c.Closing || !gone // it answers, without this communicator
			c.Ranks = append(c.Ranks, Rank{Rank: r.Rank, Host: r.Host, PID: r.PID, Missing: true})
		}
		s.Communicators = append(s.Communicators, c)
	}
	return s, nil
}
