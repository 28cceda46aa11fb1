package health

import (
	"time"

	"gpusteward/collectors"
)

// injections are what no simulated GPU can do, by name: each changes a chain
// before it begins.
var injections = map[string]func(c *chain){}

// byHand are the rows whose windows are too long for the whole chain, with the
// test that has the engine judge samples of its own.
var byHand = map[string]string{}

var _ = time.Second
var _ = collectors.Bool
