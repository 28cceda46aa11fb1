//go:build race

package broker

const raced = true
