//go:build race

package gemini

const race = true
