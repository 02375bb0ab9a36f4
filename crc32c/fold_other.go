package crc32c

const canFold = false
