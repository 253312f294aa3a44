//! Inputs made from a corpus with a fixed seed, the same in each run.

/// Numbers that look random and are the same in each run.
pub struct SplitMix(pub u64);

impl SplitMix {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as usize % bound.max(1)
    }

    /// A piece of one input put into another, or a byte changed or removed.
    pub fn made(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(3) {
            let at = self.below(input.len() + 1);
            match self.below(3) {
                0 => {
                    let other = &inputs[self.below(inputs.len())];
                    let start = self.below(other.len());
                    let end = (start + 1 + self.below(30)).min(other.len());
                    input.splice(at..at, other[start..end].iter().copied());
                }
                1 if at < input.len() => input[at] ^= 1 << self.below(8),
                _ if at < input.len() => {
                    input.remove(at);
                }
                _ => {}
            }
        }
        input
    }
}
