//go:build !race

package gemini

const race = false
