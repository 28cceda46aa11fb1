package ras

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
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

// lostComma is where NCCL 2.28.9 forgets a comma: before the status of a
// missing rank.
var lostComma = regexp.MustCompile(`(\d)(\s*"status":)`)

func parseJSON(text string) (Status, error) {
	if strings.Count(text, "{") > 4*maxRanks {
		return Status{}, errors.New("NCCL's RAS tells of too many ranks")
	}
	var d document
	if err := json.Unmarshal([]byte(lostComma.ReplaceAllString(text, "$1,$2")), &d); err != nil {
		return Status{}, fmt.Errorf("understand NCCL's RAS: %w", err)
	}
	s := Status{Version: d.Version}
	for _, from := range d.Communicators {
		c := Communicator{ID: from.Hash + from.Secondary}
		for _, r := range from.Ranks {
			if len(r.Counts) > maxNames {
				return Status{}, errors.New("NCCL's RAS tells of too many collectives")
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
